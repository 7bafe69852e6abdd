"""Probes use copies: the target stays as it is, and its state is separated from the model."""

from __future__ import annotations

import threading

import pytest
import torch
from tests.audits.probes.toy_targets import (
    LINF,
    WEIGHT,
    Caching,
    Counting,
    N,
    Net,
    Tracking,
    X,
    Y,
    probed,
)
from torch import nn

import saddlepoint as sp
from saddlepoint.audits.target.copy import copy_target
from saddlepoint.audits.target.instrument import Stateless
from saddlepoint.audits.verdict import Level, SymptomName


@pytest.mark.parametrize("target", [Counting(0.1), Caching(0.2), Tracking(True)], ids=type)
def test_probes_leave_the_target_unchanged(target):
    target.eval()
    before = {name: str(value) for name, value in vars(target).items()}
    sp.probe(target, X, Y, threat=LINF)
    assert {name: str(value) for name, value in vars(target).items()} == before


def test_every_call_of_a_stateful_net_uses_its_initial_state():
    found = probed(Counting(0.1).eval())
    assert isinstance(found.defense, Stateless)
    first = found.defense.respond(X, sp.Context.seeded(0, N))
    again = found.defense.respond(X, sp.Context.seeded(0, N))
    torch.testing.assert_close(first, again, rtol=0, atol=0)
    assert SymptomName.STATEFUL in {finding.name for finding in found.findings}


@pytest.mark.parametrize(
    "attribute",
    [threading.Lock(), torch.ones(2, requires_grad=True).exp(), (k for k in range(3))],
    ids=type,
)
def test_an_attribute_that_cannot_be_copied_does_not_hide_state(attribute):
    target = Caching(0.2).eval()
    target.attribute = attribute
    target.net.attribute = [attribute]
    found = probed(target)
    assert isinstance(found.defense, Stateless)
    assert SymptomName.NOT_COPYABLE not in {finding.name for finding in found.findings}
    found.defense.respond(X, sp.Context.seeded(0, N))
    assert not target.seen


class Hooked(nn.Module):
    """Uses what its own hook recorded, and has a lock."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Flatten()
        self.lock = threading.Lock()
        self.recorded = None
        self.layer.register_forward_hook(self._record)

    def _record(self, module, inputs, out):
        self.recorded = out

    def forward(self, x):
        self.layer(x)
        return self.recorded @ WEIGHT.to(x) if self.recorded is not None else x


def test_hooks_of_a_copy_refer_to_the_copy():
    target = Hooked().eval()
    other = copy_target(target)
    other(X)
    assert target.recorded is None
    assert torch.equal(other.recorded, X.flatten(1))


class NotCopyable(nn.Module):
    def __deepcopy__(self, memo):
        raise TypeError

    def forward(self, x):
        return Net()(x)


def test_a_net_that_cannot_be_copied_is_reported():
    levels = {finding.name: finding.level for finding in probed(NotCopyable().eval()).findings}
    assert levels[SymptomName.NOT_COPYABLE] is Level.SERIOUS
