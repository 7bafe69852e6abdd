"""RayS: radii, budgets and independence of rows."""

from __future__ import annotations

import math

import pytest
import torch
from tests.attacks.toys import (
    Centered,
    DecisionsOnly,
    Halfspace,
    Waves,
    images,
    keys,
    oracle_for,
    weights,
)

from saddlepoint.attacks.rays import RayS
from saddlepoint.attacks.spaces import L2, Linf
from saddlepoint.defenses import BlackBox, Plain
from saddlepoint.evaluation import Direct, Threat
from saddlepoint.evaluation.referee import play

EVERYWHERE = Linf(50.0, box=(-100.0, 100.0))


def labels(net: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    return net(x).argmax(1)


def test_the_radius_on_a_linear_model_is_margin_over_l1_norm() -> None:
    """Every flip towards sign(w) shortens the ray, so the radius ends at the optimum."""
    w = weights(24)
    x = images(5, 24)
    net = Halfspace(w, 8.0)
    attack = RayS(queries=1200, tolerance=1e-6, stop_inside=False)
    found = attack(oracle_for(net, torch.zeros(5).long()), x, EVERYWHERE, keys(5))
    nearest = (8.0 - (x * w).sum(1)) / w.abs().sum()
    radius = EVERYWHERE.size(found.point - x)
    assert (labels(net, found.point) == 1).all()
    assert (radius >= nearest * (1 - 1e-12)).all()
    torch.testing.assert_close(radius, nearest, rtol=0, atol=24 * 1e-6 / math.sqrt(24))


def test_the_first_ray_is_searched_to_its_tolerance() -> None:
    """With d = 9 a Euclidean tolerance of 0.3 is 0.1 per pixel.

    One query and ten bisections reduce 100 to that.
    """
    net = Halfspace(torch.ones(9).double(), 4.5)
    oracle = oracle_for(net, torch.zeros(1).long())
    found = RayS(queries=12, tolerance=0.3, stop_inside=False)(
        oracle, torch.zeros(1, 9).double(), EVERYWHERE, keys(1)
    )
    radius = EVERYWHERE.size(found.point).item()
    assert 0.5 <= radius <= 0.6
    assert torch.equal(found.point, torch.full_like(found.point, radius))


def test_only_decisions_in_the_box_are_queried() -> None:
    x = images(6, 1, 5, 5)
    net = Waves(25)
    oracle = DecisionsOnly(oracle_for(net, labels(net, x), access="decision"))
    RayS(queries=60)(oracle, x, Linf(0.01), keys(6))
    assert all(((points >= 0) & (points <= 1)).all() for points in oracle.queries)


def test_a_callable_that_returns_labels_can_be_attacked() -> None:
    x = images(8, 1, 5, 5)
    net = Waves(25)
    box = BlackBox(lambda v: net(v).argmax(1), classes=4)
    episode = play(
        box,
        Direct("rays", RayS(queries=300)),
        x,
        labels(net, x),
        Threat(Linf(0.2), access="decision"),
    )
    assert episode.correct.mean() < 1
    assert not episode.copies.any()


def test_budgets_are_used_up_and_never_exceeded() -> None:
    x = images(5, 30)
    net = Halfspace(weights(30), 9.0)
    rays = Direct("rays", RayS(queries=200))
    small = Threat(Linf(0.001), access="decision", queries=53)
    assert play(Plain(net), rays, x, torch.zeros(5).long(), small).forward.tolist() == [53] * 5
    large = Threat(Linf(0.001), access="decision")
    assert play(Plain(net), rays, x, torch.zeros(5).long(), large).forward.tolist() == [200] * 5
    oracle = oracle_for(net, torch.zeros(5).long(), limit=53)
    oracle.meter.charge(torch.tensor([3]), 40, 0)
    oracle.meter.charge(torch.tensor([4]), 53, 0)
    found = RayS(queries=50)(oracle, x, Linf(0.001), keys(5))
    assert oracle.meter.forward.tolist() == [50, 50, 50, 53, 53]
    assert (found.point != x).flatten(1).any(1).all()


def test_an_interrupted_search_keeps_a_misclassified_point() -> None:
    x = images(4, 24)
    w = weights(24)
    net = Halfspace(w, 8.0)
    for queries in range(20, 60, 7):
        found = RayS(queries=queries, stop_inside=False)(
            oracle_for(net, torch.zeros(4).long()), x, EVERYWHERE, keys(4)
        )
        assert (labels(net, found.point) == 1).all()


def test_rows_with_a_point_inside_the_ball_stop_early() -> None:
    x = images(16, 1, 5, 5)
    net = Waves(25)
    space = Linf(0.05)
    y = labels(net, x)
    oracle = oracle_for(net, y)
    found = RayS(queries=400)(oracle, x, space, keys(16))
    misclassified = labels(net, found.point) != y
    assert misclassified.any()
    assert (~misclassified).any()
    assert (oracle.meter.forward[misclassified] < 400).all()
    assert (oracle.meter.forward[~misclassified] == 400).all()
    longer = oracle_for(net, y)
    nearer = RayS(queries=400, stop_inside=False)(longer, x, space, keys(16))
    assert torch.equal(labels(net, nearer.point) != y, misclassified)
    assert (longer.meter.forward == 400).all()
    assert (space.size(nearer.point - x) <= space.size(found.point - x) + 1e-12).all()


@pytest.mark.parametrize("queries", [1, 7, 100])
def test_points_lie_in_the_set_and_differ_from_the_clean_image(queries: int) -> None:
    """Also where the box does not allow the first ray, as in a white image."""
    x = torch.cat(
        [images(5, 1, 5, 5), torch.ones(1, 1, 5, 5).double(), torch.zeros(1, 1, 5, 5).double()]
    )
    net = Waves(25)
    space = Linf(0.02)
    found = RayS(queries=queries)(oracle_for(net, labels(net, x)), x, space, keys(7))
    assert space.contains(found.point, x).all()
    assert (found.point != x).flatten(1).any(1).all()
    assert torch.equal(found.point, found.max_loss_point)


def test_the_result_of_a_row_depends_neither_on_its_batch_nor_on_the_seed() -> None:
    x = images(16, 1, 5, 5)
    net = Waves(25)
    space = Linf(0.05)
    y = labels(net, x)
    attack = RayS(queries=120)
    together = attack(oracle_for(net, y), x, space, keys(16)).point
    backwards = torch.arange(15, -1, -1)
    reversed_order = attack(
        oracle_for(net, y[backwards], ids=backwards), x[backwards], space, keys(16)[backwards]
    ).point
    assert torch.equal(reversed_order[backwards], together)
    assert torch.equal(attack(oracle_for(net, y), x, space, keys(16, seed=1)).point, together)
    for i in range(16):
        one = torch.tensor([i])
        assert torch.equal(
            attack(oracle_for(net, y[one], ids=one), x[one], space, keys(16)[one]).point,
            together[one],
        )


def test_other_norms_and_coupled_defenses_raise_errors() -> None:
    net = Halfspace(weights(9), 1.0)
    y = torch.zeros(2).long()
    with pytest.raises(ValueError, match="supports p=inf, got p=2"):
        RayS()(oracle_for(net, y), images(2, 9), L2(1.0), keys(2))
    with pytest.raises(ValueError, match="can only be evaluated together"):
        RayS()(oracle_for(Centered(net), y), images(2, 9), Linf(0.1), keys(2))
