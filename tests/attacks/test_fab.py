from __future__ import annotations

import math

import pytest
import torch
from tests.attacks.boundaries import answers, attacked, images, linear, linear_distance, mlp
from tests.attacks.test_hyperplane import shortest
from torch.testing import assert_close

from saddlepoint.attacks.fab import FAB, own_facet
from saddlepoint.attacks.losses import targeted_margin
from saddlepoint.attacks.spaces import Ball
from saddlepoint.evaluation import Direct, MultiTarget, Threat
from saddlepoint.evaluation.referee import play

NORMS = (1, 2, math.inf)


@pytest.mark.parametrize("p", NORMS)
def test_of_many_linear_classes_the_nearest_is_found(p):
    defense = linear(classes=5)
    x = images()
    y = answers(defense, x)
    space = Ball(p, 50.0, box=(-20, 20))
    found, meter = attacked(FAB(steps=20, search=30), defense, x, y, space)
    assert_close(space.size(found.point - x), linear_distance(defense, x, y, p), rtol=1e-6, atol=0)
    assert (meter.backward == 4 * 20).all()


@pytest.mark.parametrize("p", NORMS)
def test_a_box_that_binds_costs_exactly_what_the_linear_or_quadratic_program_says(p):
    defense = linear(d=6, seed=11)
    x = images(d=6, low=0.0, high=0.15)
    y = answers(defense, x)
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
    assert (linear_distance(defense, x, y, p) < 0.99 * wanted).any()  # the box does bind
    # Beyond the boundary by `eta` a bent path is left for its chord: exact for a step onto the boundary, near it by default.
    for attack, tolerance in ((FAB(steps=1, eta=1 + 1e-7), 1e-6), (FAB(steps=60, search=20), 1e-2)):
        found, _ = attacked(attack, defense, x, y, space)
        assert (answers(defense, found.point) != y).all()
        assert_close(space.size(found.point - x), wanted, rtol=tolerance, atol=0)


@pytest.mark.parametrize("p", NORMS)
def test_more_restarts_never_lengthen_the_step(p):
    defense = mlp()
    x = images(d=6)
    y = answers(defense, x)
    space = Ball(p, 5.0)
    once, often = (
        space.size(attacked(FAB(steps=10, restarts=k), defense, x, y, space)[0].point - x)
        for k in (1, 4)
    )
    # The bisection follows another segment: only its resolution may be lost.
    assert (often <= once * (1 + 2**-9)).all()


def test_one_target_at_a_time_fools_what_all_facets_together_fool():
    defense = linear(classes=5)
    x = images()
    y = answers(defense, x)
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


def test_nonsense_is_refused():
    with pytest.raises(ValueError, match="at least one step"):
        FAB(steps=0)
