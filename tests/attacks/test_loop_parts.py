"""Parts of attack loops that take a shorter way on the CPU give the same results."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import saddlepoint as sp
from saddlepoint.attacks import best as best_module
from saddlepoint.attacks import projections
from saddlepoint.attacks.apgd import APGD
from saddlepoint.attacks.best import BestSoFar, differs
from saddlepoint.attacks.history import RecordingOracle
from saddlepoint.attacks.projections import largest_entries, unit_length
from saddlepoint.attacks.spaces import L1, L2, Linf
from saddlepoint.attacks.square import Square
from saddlepoint.defenses import Plain
from saddlepoint.evaluation import Direct, Threat
from saddlepoint.evaluation.attack_context import AttackContext
from saddlepoint.gradients import Evaluation

GENERATOR = torch.Generator().manual_seed(0)


ATTACKS = {"PGD": sp.PGD(8), "APGD": APGD(12), "Square": Square(40)}


@pytest.mark.parametrize("space", [Linf(0.1), L2(0.7), L1(3.0)], ids=str)
@pytest.mark.parametrize("name", list(ATTACKS))
def test_attacks_that_claim_to_stay_inside_query_no_point_outside(name, space, monkeypatch):
    attack = ATTACKS[name]
    if not attack.stays_inside(space) or (space.p == 1 and name == "Square"):
        pytest.skip("makes no such claim, or does not support the norm")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(48, 3)).eval()
    x = torch.rand(6, 3, 4, 4, generator=GENERATOR).round()
    inside: list[bool] = []
    record = RecordingOracle._record

    def checked(self, x, evaluation):
        inside.append(bool(self.region.contains(x).all()))
        record(self, x, evaluation)

    monkeypatch.setattr(RecordingOracle, "_record", checked)
    context = AttackContext.open(Threat(space), torch.arange(6), 0)
    Direct("watched", attack).move(context, Plain(net), x, net(x).argmax(1))
    assert len(inside) > 5
    assert all(inside)


def test_apgd_in_l1_makes_no_such_claim():
    assert not APGD(12).stays_inside(L1(3.0))


def test_largest_entries_are_those_of_a_stable_sort():
    v = torch.randint(0, 6, (40, 17), generator=GENERATOR).float()  # many ties
    v[:20] = torch.rand(20, 17, generator=GENERATOR)
    count = torch.randint(1, 18, (40,), generator=GENERATOR)
    order = v.argsort(dim=1, descending=True, stable=True)
    for wanted in (count, torch.ones_like(count), torch.full_like(count, 5)):
        found = largest_entries(v, wanted)
        for row, chosen, at, k in zip(v, found, order, wanted.tolist(), strict=True):
            expected = torch.zeros(17).index_fill(0, at[:k], 1.0)
            assert torch.equal(chosen, expected * (row > 0))


def test_largest_entries_do_not_depend_on_the_device(monkeypatch):
    v = torch.randint(0, 6, (40, 17), generator=GENERATOR).float()
    count = torch.randint(1, 18, (40,), generator=GENERATOR)
    expected = largest_entries(v, count)
    monkeypatch.setattr(projections, "reading_is_free", lambda device: False)
    assert torch.equal(largest_entries(v, count), expected)


@pytest.mark.parametrize("scale", [1e-38, 1e-20, 1.0, 1e20, 1e30])
def test_directions_have_unit_length_at_any_scale(scale):
    v = torch.randn(5, 2, 3, generator=GENERATOR)
    v[2] = 0
    unit = unit_length(v * scale)
    expected = v.double() / v.double().flatten(1).norm(dim=1).clamp(min=1e-30)[:, None, None]
    assert torch.allclose(unit.double(), expected, atol=1e-4)
    assert not unit[2].any()


def test_a_change_of_any_pixel_is_a_difference(monkeypatch):
    x = torch.rand(50, 3, 5, 5, generator=GENERATOR)
    other = x.clone()
    for row in range(1, 50):
        other.view(50, -1)[row, row] += 0.5
    expected = torch.arange(50) > 0
    assert torch.equal(differs(x, other), expected)
    monkeypatch.setattr(best_module, "reading_is_free", lambda device: False)
    assert torch.equal(differs(x, other), expected)


@pytest.mark.parametrize("coupled", [False, True])
def test_best_points_do_not_change_points_of_the_caller(coupled):
    start = torch.zeros(4, 3)
    best = BestSoFar(start, coupled)
    given = [torch.rand(4, 3, generator=GENERATOR) for _ in range(6)]
    before = [x.clone() for x in given]
    for k, x in enumerate(given):
        success = torch.arange(4) < k - 2
        best.update(x, Evaluation(torch.rand(4, generator=GENERATOR), success))
    assert all(torch.equal(a, b) for a, b in zip(given, before, strict=True))
    assert not start.any()
