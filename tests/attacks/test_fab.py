"""FAB against exact distances."""

from __future__ import annotations

import math

import pytest
import torch
from tests.attacks.boundaries import attacked, images, linear, linear_distance, mlp, predictions
from tests.attacks.test_hyperplane import shortest
from torch.testing import assert_close

from saddlepoint.attacks.fab import FAB, own_facet
from saddlepoint.attacks.losses import targeted_margin
from saddlepoint.attacks.spaces import Ball
from saddlepoint.evaluation import Direct, MultiTarget, Threat
from saddlepoint.evaluation.referee import play

NORMS = (1, 2, math.inf)


@pytest.mark.parametrize("p", NORMS)
def test_the_nearest_of_many_linear_boundaries_is_found(p):
    defense = linear(classes=5)
    x = images()
    y = predictions(defense, x)
    space = Ball(p, 50.0, box=(-20, 20))
    found, meter = attacked(FAB(steps=20, search=30), defense, x, y, space)
    assert_close(space.size(found.point - x), linear_distance(defense, x, y, p), rtol=1e-6, atol=0)
    assert (meter.backward == 4 * 20).all()


@pytest.mark.parametrize("p", NORMS)
def test_the_distance_in_an_active_box_is_that_of_a_linear_or_quadratic_program(p):
    defense = linear(d=6, seed=11)
    x = images(d=6, low=0.0, high=0.15)
    y = predictions(defense, x)
    space = Ball(p, 50.0)
    weight = defense.net.weight
    z = defense.net(x)
    rows = torch.arange(len(x))
    normal = weight[1 - y] - weight[y]
    rise = z[rows, y] - z[rows, 1 - y]
    wanted = torch.tensor(
        [shortest(x[i].numpy(), normal[i].numpy(), rise[i].item(), p) for i in rows],
        dtype=torch.float64,
    )
    assert (linear_distance(defense, x, y, p) < 0.99 * wanted).any()  # the box is active
    # With `eta` > 1 a step ends beyond the boundary, and in an active box the bisection follows the
    # chord of a bent path. A step onto the boundary is exact; the default is close.
    for attack, tolerance in ((FAB(steps=1, eta=1 + 1e-7), 1e-6), (FAB(steps=60, search=20), 1e-2)):
        found, _ = attacked(attack, defense, x, y, space)
        assert (predictions(defense, found.point) != y).all()
        assert_close(space.size(found.point - x), wanted, rtol=tolerance, atol=0)


@pytest.mark.parametrize("p", NORMS)
def test_more_restarts_never_give_a_longer_perturbation(p):
    defense = mlp()
    x = images(d=6)
    y = predictions(defense, x)
    space = Ball(p, 5.0)
    once, often = (
        space.size(attacked(FAB(steps=10, restarts=k), defense, x, y, space)[0].point - x)
        for k in (1, 4)
    )
    # The bisection may follow another segment, so its resolution may be lost.
    assert (often <= once * (1 + 2**-9)).all()


def test_targeted_runs_break_the_same_rows_as_all_boundaries_together():
    defense = linear(classes=5)
    x = images()
    y = predictions(defense, x)
    space = Ball(
        math.inf, linear_distance(defense, x, y, math.inf).median().item() * 1.01, box=(-20, 20)
    )
    together = play(defense, Direct("fab", FAB(steps=20)), x, y, Threat(space))
    apart = play(
        defense,
        MultiTarget(
            Direct("fab-t", FAB(steps=20, facet=own_facet)), targets=4, loss=targeted_margin
        ),
        x,
        y,
        Threat(space),
    )
    assert torch.equal(together.correct, apart.correct)
    assert together.correct.mean() == 0.5


def test_invalid_settings_raise_an_error():
    with pytest.raises(ValueError, match="steps >= 1"):
        FAB(steps=0)
