"""Square: schedule, windows, budgets and independence of rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.attacks.toys import Centered, Halfspace, Waves, images, keys, oracle_for, weights

from saddlepoint.attacks.spaces import L1, L2, Ball, Linf
from saddlepoint.attacks.square import Square
from saddlepoint.attacks.square_windows import _bumps, window_size, windows_of
from saddlepoint.defenses import Plain
from saddlepoint.evaluation import Direct, Threat
from saddlepoint.evaluation.referee import play
from saddlepoint.gradients import EoT
from saddlepoint.rng import Keys

SPACES = [pytest.param(Linf(0.1), id="Linf"), pytest.param(L2(0.8), id="L2")]
SHAPES = [
    pytest.param((3, 8, 8), id="color"),
    pytest.param((1, 9, 6), id="oblong"),
    pytest.param((40,), id="flat"),
]


def labels(net: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    return net(x).argmax(1)


def test_the_share_is_halved_at_the_iterations_of_the_paper() -> None:
    attack = Square(queries=10_000, share=0.8)
    shares = [attack.share_at(k) for k in range(10_000)]
    drops = [k - 1 for k in range(1, 10_000) if shares[k] < shares[k - 1]]
    assert drops == [10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000]
    assert all(shares[k + 1] == shares[k] / 2 for k in drops)


def test_the_rescaled_schedule_is_relative_to_the_budget() -> None:
    long = Square(queries=10_000)
    short = Square(queries=500, rescale=True)
    assert [short.share_at(k) for k in range(500)] == [long.share_at(20 * k) for k in range(500)]
    assert Square(queries=500).share_at(400) == long.share_at(400)


@pytest.mark.parametrize(
    ("share", "size", "expected"),
    [(0.8, (28, 28), (25, 25)), (1e-3, (28, 28), (1, 1)), (0.5, (1, 40), (1, 20))],
)
def test_a_window_covers_its_share(
    share: float, size: tuple[int, int], expected: tuple[int, int]
) -> None:
    assert window_size(share, *size) == expected


@pytest.mark.parametrize(("height", "width"), [(5, 5), (4, 7), (7, 4), (1, 6), (1, 1)])
def test_bumps_have_unit_norm_and_both_signs(height: int, width: int) -> None:
    bumps = _bumps(height, width)
    assert bumps.shape == (height, width)
    torch.testing.assert_close(bumps.norm(), torch.ones((), dtype=torch.float64))
    assert (height, width) == (1, 1) or (bumps > 0).any() & (bumps < 0).any()


def test_the_start_is_vertical_stripes_per_example_and_channel() -> None:
    x = images(4, 3, 8, 8, low=0.3, high=0.7)
    start = windows_of(x, Linf(0.1)).start(keys(4)) - x
    torch.testing.assert_close(start.abs(), torch.full_like(start, 0.1))
    assert torch.equal(start.sign(), start.sign()[:, :, :1].expand_as(start))
    assert len(start.sign()[:, :, 0].flatten(1).unique(dim=0)) == 4


def redrawn(windows, x, share, row_keys):
    y = x.clone()
    rows = np.arange(len(x))
    windows.redraw(y, rows, rows, share, row_keys)
    return y


@pytest.mark.parametrize("space", [Linf(0.1), L2(0.8)], ids=str)
def test_windows_of_some_points_are_those_of_their_images(space) -> None:
    x = images(6, 3, 8, 8, low=0.0, high=1.0)
    windows = windows_of(x, space)
    point = windows.start(keys(6))
    every = redrawn(windows, point, 0.1, keys(6).fold_in(1))
    rows = np.array([5, 2, 2, 0])
    some = point[torch.tensor([1, 5, 2, 2, 3, 0])]
    before = some.clone()
    at = np.array([1, 2, 3, 5])
    windows.redraw(some, at, rows, 0.1, keys(6).fold_in(1)[torch.from_numpy(rows)])
    assert torch.equal(some[at], every[rows])
    assert torch.equal(some[[0, 4]], before[[0, 4]])


def test_every_example_has_its_own_window() -> None:
    x = images(32, 1, 12, 12, low=0.3, high=0.7)
    windows = windows_of(x, Linf(0.1))
    start = windows.start(keys(32))
    changed = redrawn(windows, start, 0.1, keys(32).fold_in(1)) != start
    where = changed.flatten(1).double().argmax(1)
    assert len(where.unique()) > 16  # 81 positions; 32 draws cover 26 of them on average


def test_a_linf_window_always_changes_the_point() -> None:
    # On the edges of the box, where half of the moves are impossible.
    x = images(200, 1, 6, 6, low=0.0, high=1.0).round()
    windows = windows_of(x, Linf(0.1))
    point = windows.start(keys(200))
    for k in range(5):
        y = redrawn(windows, point, 0.01, keys(200).fold_in(k))
        assert (y != point).flatten(1).any(1).all()
        point = y


STEPS = torch.arange(6, dtype=torch.float64)
SMOOTH = torch.outer((STEPS - 2.5).sin(), (STEPS / 3).cos()).flatten()


@pytest.mark.parametrize(
    ("space", "w", "relative_gap"),
    [(Linf(0.1), weights(36), 0.02), (L2(0.8), SMOOTH, 0.3)],
    ids=["Linf", "L2"],
)
def test_the_worst_case_of_a_linear_model_is_approached(
    space: Ball, w: torch.Tensor, relative_gap: float
) -> None:
    """Away from the box the best value is radius x dual norm.

    The windows of L2 are smooth, so a smooth problem is used there.
    """
    x = images(6, 1, 6, 6, low=0.4, high=0.6)
    optimum = space.radius * (w.abs().sum() if space.p > 2 else w.norm())
    net = Halfspace(w, 100.0)  # no example can be misclassified
    found = Square(queries=700, rescale=True)(
        oracle_for(net, torch.zeros(6, dtype=torch.long)), x, space, keys(6)
    )
    gain = ((found.point - x).flatten(1) * w).sum(1)
    assert (gain <= optimum * (1 + 1e-12)).all()
    assert (gain >= optimum * (1 - relative_gap)).all()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("space", SPACES)
def test_points_lie_in_the_set_and_differ_from_the_clean_image(
    space: Ball, shape: tuple[int, ...]
) -> None:
    x = images(12, *shape)
    x = torch.cat([x[:6], x[6:].round()])
    net = Waves(x[0].numel())
    found = Square(queries=60)(oracle_for(net, labels(net, x)), x, space, keys(12))
    for points in (found.point, found.max_loss_point):
        assert points.shape == x.shape
        assert space.contains(points, x).all()
        assert (points != x).flatten(1).any(1).all()


def test_the_clean_image_is_not_proposed_in_a_corner_of_the_box() -> None:
    """In one dimension the only other point is the opposite side of the ball."""
    x = torch.cat([torch.zeros(8, 1), torch.ones(8, 1)]).double()
    found = Square(queries=20)(
        oracle_for(Halfspace(torch.tensor([1.0]).double(), 10.0), torch.zeros(16).long()),
        x,
        Linf(0.1),
        keys(16),
    )
    torch.testing.assert_close((found.point - x).abs(), torch.full_like(x, 0.1))


def test_the_budget_of_the_threat_is_used_up_and_never_exceeded() -> None:
    x = images(5, 1, 6, 6)
    net = Halfspace(weights(36), 100.0)
    threat = Threat(Linf(0.05), access="score", queries=37)
    episode = play(
        Plain(net), Direct("square", Square(queries=100)), x, torch.zeros(5).long(), threat
    )
    assert episode.forward.tolist() == [37] * 5
    episode = play(
        Plain(net), Direct("square", Square(queries=20)), x, torch.zeros(5).long(), threat
    )
    assert episode.forward.tolist() == [20] * 5
    episode = play(
        Plain(net),
        Direct("square", Square(queries=100), estimator=EoT(4)),
        x,
        torch.zeros(5).long(),
        threat,
    )
    assert episode.forward.tolist() == [36] * 5


def test_rows_with_different_remaining_budgets_use_their_own() -> None:
    x = images(4, 1, 6, 6)
    oracle = oracle_for(Halfspace(weights(36), 100.0), torch.zeros(4).long(), limit=30)
    oracle.meter.charge(torch.tensor([1]), 10, 0)
    oracle.meter.charge(torch.tensor([2]), 30, 0)
    found = Square(queries=25)(oracle, x, Linf(0.05), keys(4))
    assert oracle.meter.forward.tolist() == [25, 30, 30, 25]
    assert (found.point != x).flatten(1).any(1).all()


def test_misclassified_rows_stop_and_keep_their_point() -> None:
    x = images(24, 1, 6, 6, low=0.3, high=0.7)
    net = Waves(36)
    y = labels(net, x)
    oracle = oracle_for(net, y)
    found = Square(queries=300)(oracle, x, Linf(0.03), keys(24))
    misclassified = labels(net, found.point) != y
    passes = oracle.meter.forward
    assert misclassified.any()
    assert (~misclassified).any()
    assert (passes[~misclassified] == 300).all()
    assert (passes[misclassified] < 300).all()
    again = oracle_for(net, y, limit=int(passes[misclassified].amin()))
    assert (
        (labels(net, Square(queries=300)(again, x, Linf(0.03), keys(24)).point) != y)
        <= misclassified
    ).all()


@pytest.mark.parametrize("space", SPACES)
def test_the_result_of_a_row_does_not_depend_on_its_batch(space: Ball) -> None:
    x = images(16, 3, 6, 6)
    net = Waves(108)
    space = replace(space, radius=space.radius / 4)
    y = labels(net, x)
    random_keys = keys(16)
    together = Square(queries=80)(oracle_for(net, y), x, space, random_keys)
    assert (labels(net, together.point) != y).any()
    backwards = torch.arange(15, -1, -1)
    reversed_order = Square(queries=80)(
        oracle_for(net, y[backwards], ids=backwards), x[backwards], space, random_keys[backwards]
    )
    assert torch.equal(reversed_order.point[backwards], together.point)
    for i in range(16):
        one = torch.tensor([i])
        alone = Square(queries=80)(
            oracle_for(net, y[one], ids=one), x[one], space, random_keys[one]
        )
        assert torch.equal(alone.point, together.point[one])
        assert torch.equal(alone.max_loss_point, together.max_loss_point[one])


def test_points_are_a_function_of_the_seed() -> None:
    x = images(4, 1, 6, 6)
    net = Halfspace(weights(36), 100.0)
    a, b, c = (
        Square(queries=20)(
            oracle_for(net, torch.zeros(4).long()), x, Linf(0.1), keys(4, seed)
        ).point
        for seed in (0, 0, 1)
    )
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


def test_the_highest_loss_never_decreases_with_more_queries() -> None:
    x = images(4, 1, 6, 6)
    w = weights(36)
    gains = []
    for queries in (1, 10, 100):
        found = Square(queries=queries)(
            oracle_for(Halfspace(w, 100.0), torch.zeros(4).long()), x, Linf(0.1), keys(4)
        )
        gains.append(((found.max_loss_point - x).flatten(1) * w).sum(1))
    assert (gains[0] <= gains[1]).all()
    assert (gains[1] < gains[2]).all()


def test_coupled_rows_return_a_batch_that_was_evaluated() -> None:
    x = images(6, 1, 6, 6)
    oracle = oracle_for(Centered(Halfspace(weights(36), 0.0)), torch.zeros(6).long())
    evaluated: list[torch.Tensor] = []
    hook = oracle.objective.defenses[0].net.register_forward_hook(
        lambda _, inputs, __: evaluated.append(inputs[0])
    )  # type: ignore[attr-defined]
    found = Square(queries=50)(oracle, x, Linf(0.02), keys(6))
    hook.remove()
    assert oracle.meter.forward.tolist() == [50] * 6
    assert any(torch.equal(found.point - 0.1 * found.point.mean(0), batch) for batch in evaluated)


@pytest.mark.parametrize("space", [L1(1.0)])
def test_other_norms_and_access_levels_raise_errors(space: Ball) -> None:
    oracle = oracle_for(Halfspace(weights(36), 0.0), torch.zeros(2).long())
    with pytest.raises(ValueError, match="supports p=2 and p=inf, got p=1"):
        Square()(oracle, images(2, 1, 6, 6), space, keys(2))
    with pytest.raises(PermissionError):
        Square()(
            oracle_for(Halfspace(weights(36), 0.0), torch.zeros(2).long(), access="decision"),
            images(2, 36),
            Linf(0.1),
            keys(2),
        )


def test_random_windows_depend_on_the_id_of_the_example_only() -> None:
    """Two rows with the same id draw the same windows at any position in the batch."""
    x = images(1, 1, 6, 6).expand(3, 1, 6, 6)
    random_keys = Keys.of(0, torch.tensor([4, 9, 4]))
    oracle = oracle_for(Halfspace(weights(36), 100.0), torch.zeros(3).long())
    a, b, c = Square(queries=30)(oracle, x, Linf(0.1), random_keys).point
    assert torch.equal(a, c)
    assert not torch.equal(a, b)
