"""Margins at the points of a probe: which targets are called again."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

import saddlepoint as sp
from saddlepoint.audits.probes.gradient_probe import GradientProbe
from saddlepoint.audits.probes.probe_target import ProbeTarget


class Counted(sp.Defense):
    """A defense that counts its calls; what it declares is chosen."""

    def __init__(self, *, random: bool = False) -> None:
        super().__init__()
        self.random = random
        self.calls = 0

    def trace(self, x: Tensor, ctx: sp.Context) -> sp.Trace:
        self.calls += 1
        return sp.Trace((sp.View("final", x.flatten(1)[:, :3]),))


def probed(defense: sp.Defense | nn.Module) -> ProbeTarget:
    x = torch.rand(8, 1, 2, 2, generator=torch.Generator().manual_seed(0))
    return ProbeTarget.of(defense, x, torch.zeros(8, dtype=torch.long), sp.Linf(0.1))


def test_a_target_that_declares_equal_outputs_is_called_once_per_point() -> None:
    target = probed(Counted())
    probe = GradientProbe(target)
    before = target.defense.calls  # type: ignore[attr-defined]
    first = probe.value(probe.x)
    other = probe.value(probe.x + 0.01)
    assert target.defense.calls == before + 2  # type: ignore[attr-defined]
    again = replace(probe, rules={}, target=replace(target, x=target.x + 0.01))
    assert torch.equal(again.value(probe.x), first)
    assert torch.equal(again.value(probe.x + 0.01), other)
    assert not torch.equal(first, other)
    assert target.defense.calls == before + 2  # type: ignore[attr-defined]


def test_two_probes_share_no_margins() -> None:
    assert probed(Counted()).margins is not probed(Counted()).margins


def test_a_target_without_this_declaration_is_called_again() -> None:
    defense = Counted(random=True)
    probe = GradientProbe(probed(defense))
    before = defense.calls
    for _ in range(2):
        probe.value(probe.x)
    assert defense.calls == before + 2
    assert not probed(nn.Sequential(nn.Flatten(), nn.Linear(4, 3))).repeatable
