"""What is asked is a copy: the target stays as it was, and what it remembers is told from what it is."""

from __future__ import annotations

import threading

import pytest
import torch
from saddlepoint.audits.target.check import check
from tests.audits.test_probe import LINF, WEIGHT, Caching, Counting, N, Net, Tracking, X, Y
from torch import nn

import saddlepoint as sp
from saddlepoint.audits.target.copy import copied
from saddlepoint.audits.target.instrument import Stateless


def test_a_target_is_left_as_it_was():
    for target in (Counting(0.1).eval(), Caching(0.2).eval(), Tracking(True).eval()):
        before = {k: str(v) for k, v in vars(target).items()}
        sp.probe(target, X, Y, threat=LINF)
        assert {k: str(v) for k, v in vars(target).items()} == before


def test_a_net_that_remembers_is_asked_as_it_was_handed_over():
    checked = check(Counting(0.1).eval(), X, Y, LINF)
    assert isinstance(checked.defense, Stateless)
    first, again = (checked.defense.respond(X, sp.Context.seeded(0, N)) for _ in range(2))
    torch.testing.assert_close(first, again, rtol=0, atol=0)
    assert "remembers" in {f.name for f in checked.findings}


@pytest.mark.parametrize(
    "held",
    [threading.Lock(), torch.ones(2, requires_grad=True).exp(), (k for k in range(3))],
    ids=type,
)
def test_what_cannot_be_copied_does_not_hide_what_is_remembered(held):
    target = Caching(0.2).eval()
    target.held = held
    target.net.held = [held]
    checked = check(target, X, Y, LINF)
    assert isinstance(checked.defense, Stateless)
    assert "cannot be copied" not in {f.name for f in checked.findings}
    checked.defense.respond(X, sp.Context.seeded(0, N))
    assert not target.seen


class Hooked(nn.Module):
    """Answers with what a hook of its own wrote down, and holds a lock."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Flatten()
        self.lock = threading.Lock()
        self.noted = None
        self.layer.register_forward_hook(self._note)

    def _note(self, module, given, out):
        self.noted = out

    def forward(self, x):
        self.layer(x)
        return self.noted @ WEIGHT.to(x) if self.noted is not None else x


def test_a_copy_of_a_net_whose_hooks_refer_to_it_is_a_net_of_its_own():
    target = Hooked().eval()
    other = copied(target)
    other(X)
    assert target.noted is None
    assert torch.equal(other.noted, X.flatten(1))


class Unique(nn.Module):
    """Nobody can have another one."""

    def __deepcopy__(self, memo):
        raise TypeError

    def forward(self, x):
        return Net()(x)


def test_a_net_that_cannot_be_copied_is_told():
    found = {f.name: f.level for f in check(Unique().eval(), X, Y, LINF).findings}
    assert found["cannot be copied"] == "serious"
