"""Parts of attack loops that take a shorter way on the CPU give the same results."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import saddlepoint as sp
from saddlepoint.attacks import best as best_module
from saddlepoint.attacks import projections
from saddlepoint.attacks.apgd import APGD
from saddlepoint.attacks.best import BestSoFar, Differences
from saddlepoint.attacks.history import RecordingOracle
from saddlepoint.attacks.oracle import Meter
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
    differences = Differences(other)
    assert torch.equal(differences(x), expected)
    assert torch.equal(differences(other), torch.zeros(50).bool())
    assert torch.equal(differences(x), expected)
    few = torch.tensor([0, 7, 3])
    assert torch.equal(differences[few](x[few]), expected[few])
    monkeypatch.setattr(best_module, "reading_is_free", lambda device: False)
    assert torch.equal(differences(x), expected)


def visited(seed):
    """The best points after a run with misclassified, unmoved and NaN rows."""
    generator = torch.Generator().manual_seed(seed)
    best = BestSoFar(torch.zeros(40, 3), coupled=False)
    rows = []
    for _ in range(8):
        x = torch.rand(40, 3, generator=generator)
        x[torch.rand(40, generator=generator) < 0.2] = 0
        value = torch.randint(0, 5, (40,), generator=generator).float()
        value[torch.rand(40, generator=generator) < 0.2] = torch.nan
        rows.append(best.update(x, Evaluation(value, torch.rand(40, generator=generator) < 0.3)))
    return [best.point, best.max_loss_point, best.value, best.max_loss, best.success, *rows]


@pytest.mark.parametrize("seed", range(5))
def test_best_points_do_not_depend_on_the_device(seed, monkeypatch):
    expected = visited(seed)
    monkeypatch.setattr(best_module, "reading_is_free", lambda device: False)
    assert all(torch.equal(a, b) for a, b in zip(visited(seed), expected, strict=True))


@pytest.mark.parametrize("space", [Linf(0.1), L2(0.7), L1(3.0)], ids=str)
def test_a_projection_in_place_is_the_projection(space):
    center = torch.rand(20, 3, 4, 4, generator=GENERATOR).round()
    x = center + torch.randn(20, 3, 4, 4, generator=GENERATOR)
    before = x.clone()
    expected = space.around(center).project(x)
    assert torch.equal(x, before)
    assert torch.equal(space.around(center).project_(x), expected)


class Remembering(nn.Module):
    """A net that keeps the images of all calls, and copies of them."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(48, 3)
        self.given = []
        self.copies = []

    def forward(self, x):
        self.given.append(x.detach())
        self.copies.append(x.detach().clone())
        return self.linear(x.flatten(1))


@pytest.mark.parametrize("space", [Linf(0.1), L2(0.7), L1(3.0)], ids=str)
@pytest.mark.parametrize("attack", [sp.PGD(8), sp.PGD(8, momentum=0.5), APGD(12)], ids=str)
def test_attacks_do_not_change_points_that_the_target_has_seen(attack, space):
    torch.manual_seed(0)
    net = Remembering().eval()
    x = torch.rand(6, 3, 4, 4, generator=GENERATOR)
    clean = x.clone()
    context = AttackContext.open(Threat(space), torch.arange(6), 0)
    Direct("attack", attack).move(context, Plain(net), x, torch.arange(6) % 3)
    assert all(torch.equal(a, b) for a, b in zip(net.given, net.copies, strict=True))
    assert torch.equal(x, clean)


def test_passes_of_repeated_rows_are_added():
    meter = Meter.of(4)
    meter.charge(torch.tensor([0, 2, 2]), 2, 1)
    meter.charge(torch.tensor([1, 3]), 5, 0)
    assert meter.forward.tolist() == [2, 5, 4, 5]
    assert meter.backward.tolist() == [1, 0, 2, 0]
    assert meter.used(torch.tensor([3, 2])).tolist() == [5, 4]


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
