"""Contracts of all minimum-norm attacks."""

from __future__ import annotations

import math

import pytest
import torch
from tests.attacks.boundaries import (
    Centered,
    attacked,
    images,
    linear,
    linear_distance,
    mlp,
    predictions,
)
from torch.testing import assert_close

from saddlepoint.attacks.apgd import APGD
from saddlepoint.attacks.cw import CW
from saddlepoint.attacks.fab import FAB, own_facet
from saddlepoint.attacks.fmn import FMN
from saddlepoint.attacks.losses import targeted_margin
from saddlepoint.attacks.oracle import BudgetExceeded
from saddlepoint.attacks.spaces import Ball

NORMS = (1, 2, math.inf)
SHORT = [(FAB(steps=6, restarts=2, search=4), p) for p in NORMS]
SHORT += [(FAB(steps=6, facet=own_facet), p) for p in NORMS]
SHORT += [(FMN(steps=15, search=4), p) for p in NORMS]
SHORT += [(CW(steps=20, rounds=4, constant=0.1, learning_rate=0.05, search=4), 2)]
every_attack = pytest.mark.parametrize(
    ("attack", "p"),
    SHORT,
    ids=lambda v: type(v).__name__ if not isinstance(v, int | float) else f"{v}",
)


@every_attack
def test_proposals_lie_in_the_set_and_differ_from_the_clean_image(attack, p):
    defense = mlp()
    x = images(d=6)
    y = predictions(defense, x)
    # Every fourth image is misclassified without an attack.
    y = torch.where(torch.arange(16) % 4 == 0, (y + 1) % 3, y)
    for radius in (1e-3, 0.1, 100.0):
        space = Ball(p, radius)
        found, _ = attacked(attack, defense, x, y, space)
        for point in (found.point, found.max_loss_point):
            assert space.contains(point, x).all()
            assert (point != x).any(1).all()


@every_attack
def test_misclassified_images_need_almost_no_perturbation(attack, p):
    defense = mlp()
    x = images(d=6)
    y = (predictions(defense, x) + 1) % 3
    found, _ = attacked(attack, defense, x, y, Ball(p, 100.0))
    assert (predictions(defense, found.point) != y).all()
    assert (Ball(p, 100.0).size(found.point - x) < 0.1).all()


@every_attack
def test_the_number_of_passes_is_the_declared_one(attack, p):
    defense = mlp()
    x = images(d=6)
    y = predictions(defense, x)
    _, meter = attacked(attack, defense, x, y, Ball(p, 0.3), limit=attack.calls)
    assert (meter.forward == attack.calls).all()
    with pytest.raises(BudgetExceeded):
        attacked(attack, defense, x, y, Ball(p, 0.3), limit=attack.calls - 1)


@every_attack
def test_the_result_of_a_row_does_not_depend_on_its_batch(attack, p):
    defense = mlp()
    x = images(d=6)
    y = predictions(defense, x)
    ids = torch.arange(16)
    space = Ball(p, 5.0)
    whole, _ = attacked(attack, defense, x, y, space)
    back, _ = attacked(attack, defense, x.flip(0), y.flip(0), space, ids=ids.flip(0))
    alone, _ = attacked(attack, defense, x[5:6], y[5:6], space, ids=ids[5:6])
    # Matrix products of other shapes round differently, by 1e-16 per step. The steps are
    # contractions or bisections.
    assert_close(back.point.flip(0), whole.point, rtol=0, atol=1e-9)
    assert_close(alone.point, whole.point[5:6], rtol=0, atol=1e-9)


@every_attack
def test_the_same_seed_gives_the_same_points(attack, p):
    defense = mlp()
    x = images(d=6)
    y = predictions(defense, x)
    first, second = (attacked(attack, defense, x, y, Ball(p, 5.0), seed=3)[0] for _ in range(2))
    assert torch.equal(first.point, second.point)
    assert torch.equal(first.max_loss_point, second.max_loss_point)


@every_attack
def test_with_two_classes_targeted_and_untargeted_results_agree(attack, p):
    defense = linear()
    x = images()
    y = predictions(defense, x)
    space = Ball(p, 5.0)
    untargeted, _ = attacked(attack, defense, x, y, space)
    targeted, _ = attacked(attack, defense, x, y, space, loss=targeted_margin(1 - y))
    assert torch.equal(targeted.point, untargeted.point)


@every_attack
def test_coupled_rows_are_attacked_as_a_batch(attack, p):
    defense = Centered(mlp())
    x = images(d=6)
    y = predictions(defense, x)
    wide = Ball(p, 5.0)
    narrow = Ball(p, 0.02)
    found, _ = attacked(attack, defense, x, y, wide)
    assert (predictions(defense, found.point) != y).float().mean() > 0.8
    found, _ = attacked(attack, defense, x, y, narrow)
    assert narrow.contains(found.point, x).all()


@pytest.mark.parametrize("p", NORMS)
@pytest.mark.parametrize(
    "attack",
    [
        FAB(steps=20, search=30),
        FAB(steps=20, facet=own_facet, search=30),
        FMN(steps=200, search=30),
    ],
)
def test_the_distance_to_a_linear_boundary_is_the_margin_over_the_dual_norm(attack, p):
    defense = linear()
    x = images()
    y = predictions(defense, x)
    space = Ball(p, 50.0, box=(-20, 20))
    found, _ = attacked(attack, defense, x, y, space)
    assert (predictions(defense, found.point) != y).all()
    assert_close(space.size(found.point - x), linear_distance(defense, x, y, p), rtol=1e-6, atol=0)


@pytest.mark.parametrize("p", NORMS)
@pytest.mark.parametrize("attack", [FAB(steps=30), FMN(steps=200)])
def test_exactly_the_rows_with_a_boundary_within_the_radius_are_broken(attack, p):
    defense = linear()
    x = images()
    y = predictions(defense, x)
    wanted = linear_distance(defense, x, y, p)
    radius = wanted.median().item() * 1.01
    found, _ = attacked(attack, defense, x, y, Ball(p, radius, box=(-20, 20)))
    assert torch.equal(predictions(defense, found.point) != y, wanted < radius)


@pytest.mark.parametrize("p", NORMS)
@pytest.mark.parametrize(
    "attack", [FAB(steps=50), FMN(steps=300), CW(steps=150, learning_rate=0.02)]
)
def test_apgd_rarely_succeeds_at_90_percent_of_the_norm_found(attack, p):
    if isinstance(attack, CW) and p != 2:
        pytest.skip("CW supports the L2 norm only")
    defense = mlp()
    x = images(n=8, d=6)
    y = predictions(defense, x)
    found, _ = attacked(attack, defense, x, y, Ball(p, 50.0))
    size = Ball(p, 50.0).size(found.point - x)
    broken = 0
    for i in range(len(x)):  # one ball per row
        row = slice(i, i + 1)
        found, _ = attacked(
            APGD(steps=50),
            defense,
            x[row],
            y[row],
            Ball(p, 0.9 * size[i].item()),
            ids=torch.tensor([i]),
        )
        broken += (predictions(defense, found.point) != y[row]).item()
    # One row may end in a local minimum. Ten percent is more than the error of a bisection or of an
    # annealed radius.
    assert broken <= 1
