"""Batches that are filled with further trials of the same rows give the same results."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from saddlepoint.attacks.apgd import APGD
from saddlepoint.attacks.losses import targeted_margin
from saddlepoint.attacks.spaces import L2, Linf
from saddlepoint.attacks.square import Square
from saddlepoint.defenses import Plain
from saddlepoint.evaluation import Direct, MultiTarget, Threat, combinators
from saddlepoint.evaluation.attack_context import AttackContext

X = torch.rand(24, 3, 6, 6, generator=torch.Generator().manual_seed(3))


def net() -> nn.Module:
    torch.manual_seed(1)
    layers = nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(128, 7)
    return nn.Sequential(*layers).eval()


def attacked(adversary, space, rows=slice(None)):
    model = net()
    ids = torch.arange(len(X))[rows]
    context = AttackContext.open(Threat(space), ids, 0)
    result = adversary.move(context, Plain(model), X[rows], model(X[rows]).argmax(1))
    return result.point, context.meter


@pytest.mark.parametrize("space", [Linf(0.02), L2(0.3)], ids=str)
def test_target_classes_together_give_the_points_of_one_after_another(space, monkeypatch):
    direct = Direct("apgd-t", APGD(10), stop_at_success=True)
    adversary = MultiTarget(direct, 6, targeted_margin)
    together, _ = attacked(adversary, space)
    monkeypatch.setattr(combinators, "_FULL_BATCH", 1)
    alone, meter = attacked(adversary, space)
    assert torch.allclose(together, alone, atol=1e-5)
    some = net()(alone).argmax(1) != net()(X).argmax(1)
    assert some.any()
    assert not some.all()
    assert meter.forward[~some].amin() > meter.forward[some].amin()


@pytest.mark.parametrize("space", [Linf(0.02), L2(0.3)], ids=str)
def test_square_finds_the_same_points_with_any_lookahead(space):
    """Unless the queries run out, which discarded proposals use as well."""
    one, _ = attacked(Direct("square", Square(4000)), space)
    many, meter = attacked(Direct("square", Square(4000, lookahead=16)), space)
    broken = net()(one).argmax(1) != net()(X).argmax(1)
    assert broken.sum() >= 5
    ended = broken & (meter.forward < 4000)
    assert torch.equal(one[ended], many[ended])
    assert meter.forward.amax() <= 4000


def test_square_needs_fewer_batches_with_lookahead():
    class Counted(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = net()
            self.batches = 0

        def forward(self, x):
            self.batches += 1
            return self.inner(x)

    batches = []
    for lookahead in (1, 16):
        counted = Counted()
        context = AttackContext.open(Threat(Linf(0.005)), torch.arange(len(X)), 0)
        adversary = Direct("square", Square(1000, lookahead=lookahead))
        adversary.move(context, Plain(counted), X, net()(X).argmax(1))
        batches.append(counted.batches)
    assert batches[0] == 1000
    assert batches[1] < batches[0] / 4


def test_an_example_is_searched_alone_as_in_a_batch():
    adversary = Direct("square", Square(300, lookahead=16))
    whole, meter = attacked(adversary, Linf(0.01))
    part, meter_of_part = attacked(adversary, Linf(0.01), torch.arange(5, 9))
    assert torch.equal(whole[5:9], part)
    assert torch.equal(meter.forward[5:9], meter_of_part.forward)
