from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.attacks.toys import Centerd, Halfspace, Waves, images, keys, sub_context, weights

from saddlepoint.attacks.spaces import L1, L2, Ball, Linf
from saddlepoint.attacks.square import Square, _bumps, _windows, window_size
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


def test_schedule_halves_the_share_at_the_listed_iterations() -> None:
    attack = Square(queries=10_000, share=0.8)
    shares = [attack.share_at(k) for k in range(10_000)]
    drops = [k - 1 for k in range(1, 10_000) if shares[k] < shares[k - 1]]
    assert drops == [10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000]
    assert all(shares[k + 1] == shares[k] / 2 for k in drops)


def test_rescaled_schedule_is_the_same_in_parts_of_the_budget() -> None:
    long = Square(queries=10_000)
    short = Square(queries=500, rescale=True)
    assert [short.share_at(k) for k in range(500)] == [long.share_at(20 * k) for k in range(500)]
    assert Square(queries=500).share_at(400) == long.share_at(400)


@pytest.mark.parametrize(
    ("share", "size", "expected"),
    [(0.8, (28, 28), (25, 25)), (1e-3, (28, 28), (1, 1)), (0.5, (1, 40), (1, 20))],
)
def test_window_covers_its_share(
    share: float, size: tuple[int, int], expected: tuple[int, int]
) -> None:
    assert window_size(share, *size) == expected


@pytest.mark.parametrize(("height", "width"), [(5, 5), (4, 7), (7, 4), (1, 6), (1, 1)])
def test_bump_and_hollow_are_opposite_and_of_unit_length(height: int, width: int) -> None:
    bumps = _bumps(height, width)
    assert bumps.shape == (height, width)
    torch.testing.assert_close(bumps.norm(), torch.ones((), dtype=torch.float64))
    assert (height, width) == (1, 1) or (bumps > 0).any() & (bumps < 0).any()


def test_start_is_vertical_stripes_of_each_example_and_channel() -> None:
    x = images(4, 3, 8, 8, low=0.3, high=0.7)
    start = _windows(x, Linf(0.1)).start(keys(4)) - x
    torch.testing.assert_close(start.abs(), torch.full_like(start, 0.1))
    assert torch.equal(start.sign(), start.sign()[:, :, :1].expand_as(start))
    assert len(start.sign()[:, :, 0].flatten(1).unique(dim=0)) == 4


def test_every_example_has_a_window_of_its_own() -> None:
    x = images(32, 1, 12, 12, low=0.3, high=0.7)
    windows = _windows(x, Linf(0.1))
    start = windows.start(keys(32))
    changed = windows.redrawn(start, 0.1, keys(32).fold_in(1)) != start
    where = changed.flatten(1).double().argmax(1)
    assert len(where.unique()) > 16  # 81 places; 32 draws cover 26 of them on average


def test_linf_window_never_proposes_the_same_point_again() -> None:
    x = images(
        200, 1, 6, 6, low=0.0, high=1.0
    ).round()  # on the walls of the box, where half of the moves are blocked
    windows = _windows(x, Linf(0.1))
    point = windows.start(keys(200))
    for k in range(5):
        y = windows.redrawn(point, 0.01, keys(200).fold_in(k))
        assert (y != point).flatten(1).any(1).all()
        point = y


STEPS = torch.arange(6, dtype=torch.float64)
SMOOTH = torch.outer((STEPS - 2.5).sin(), (STEPS / 3).cos()).flatten()


@pytest.mark.parametrize(
    ("space", "w", "short"),
    [(Linf(0.1), weights(36), 0.02), (L2(0.8), SMOOTH, 0.3)],
    ids=["Linf", "L2"],
)
def test_linear_model_worst_case_is_approached(space: Ball, w: torch.Tensor, short: float) -> None:
    """With the box out of reach the best value is radius x dual norm. Windows of L2 are smooth, and so is what they can find."""
    x = images(6, 1, 6, 6, low=0.4, high=0.6)
    optimum = space.radius * (w.abs().sum() if space.p > 2 else w.norm())
    net = Halfspace(w, 100.0)  # nobody is ever fooled
    found = Square(queries=700, rescale=True)(
        sub_context(net, torch.zeros(6, dtype=torch.long)), x, space, keys(6)
    )
    gain = ((found.point - x).flatten(1) * w).sum(1)
    assert (gain <= optimum * (1 + 1e-12)).all()
    assert (gain >= optimum * (1 - short)).all()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("space", SPACES)
def test_points_are_legal_and_no_copies(space: Ball, shape: tuple[int, ...]) -> None:
    x = images(12, *shape)
    x = torch.cat([x[:6], x[6:].round()])
    net = Waves(x[0].numel())
    found = Square(queries=60)(sub_context(net, labels(net, x)), x, space, keys(12))
    for points in (found.point, found.max_loss_point):
        assert points.shape == x.shape
        assert space.contains(points, x).all()
        assert (points != x).flatten(1).any(1).all()


def test_a_corner_of_the_box_is_no_excuse_for_a_clean_copy() -> None:
    """In one dimension the only other point is the far side of the ball, whatever the signs say and however bad it is."""
    x = torch.cat([torch.zeros(8, 1), torch.ones(8, 1)]).double()
    found = Square(queries=20)(
        sub_context(Halfspace(torch.tensor([1.0]).double(), 10.0), torch.zeros(16).long()),
        x,
        Linf(0.1),
        keys(16),
    )
    torch.testing.assert_close((found.point - x).abs(), torch.full_like(x, 0.1))


def test_budget_of_the_threat_is_used_to_the_last_query_and_never_overdrawn() -> None:
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


def test_rows_with_different_purses_spend_what_they_have() -> None:
    x = images(4, 1, 6, 6)
    oracle = sub_context(Halfspace(weights(36), 100.0), torch.zeros(4).long(), limit=30)
    oracle.meter.charge(torch.tensor([1]), 10, 0)
    oracle.meter.charge(torch.tensor([2]), 30, 0)
    found = Square(queries=25)(oracle, x, Linf(0.05), keys(4))
    assert oracle.meter.forward.tolist() == [25, 30, 30, 25]
    assert (found.point != x).flatten(1).any(1).all()


def test_fooled_rows_stop_asking_and_keep_the_point_that_fooled() -> None:
    x = images(24, 1, 6, 6, low=0.3, high=0.7)
    net = Waves(36)
    y = labels(net, x)
    oracle = sub_context(net, y)
    found = Square(queries=300)(oracle, x, Linf(0.03), keys(24))
    fooled = labels(net, found.point) != y
    spent = oracle.meter.forward
    assert fooled.any()
    assert (~fooled).any()
    assert (spent[~fooled] == 300).all()
    assert (spent[fooled] < 300).all()
    again = sub_context(net, y, limit=int(spent[fooled].amin()))
    assert (
        (labels(net, Square(queries=300)(again, x, Linf(0.03), keys(24)).point) != y) <= fooled
    ).all()


@pytest.mark.parametrize("space", SPACES)
def test_a_row_does_not_notice_its_batch(space: Ball) -> None:
    x = images(16, 3, 6, 6)
    net = Waves(108)
    space = replace(space, radius=space.radius / 4)
    y = labels(net, x)
    toss = keys(16)
    together = Square(queries=80)(sub_context(net, y), x, space, toss)
    assert (labels(net, together.point) != y).any()
    backwards = torch.arange(15, -1, -1)
    turned = Square(queries=80)(
        sub_context(net, y[backwards], ids=backwards), x[backwards], space, toss[backwards]
    )
    assert torch.equal(turned.point[backwards], together.point)
    for i in range(16):
        one = torch.tensor([i])
        alone = Square(queries=80)(sub_context(net, y[one], ids=one), x[one], space, toss[one])
        assert torch.equal(alone.point, together.point[one])
        assert torch.equal(alone.max_loss_point, together.max_loss_point[one])


def test_same_seed_same_points_other_seed_other_points() -> None:
    x = images(4, 1, 6, 6)
    net = Halfspace(weights(36), 100.0)
    a, b, c = (
        Square(queries=20)(
            sub_context(net, torch.zeros(4).long()), x, Linf(0.1), keys(4, seed)
        ).point
        for seed in (0, 0, 1)
    )
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


def test_value_of_the_peak_never_falls_with_more_queries() -> None:
    x = images(4, 1, 6, 6)
    w = weights(36)
    gains = []
    for queries in (1, 10, 100):
        found = Square(queries=queries)(
            sub_context(Halfspace(w, 100.0), torch.zeros(4).long()), x, Linf(0.1), keys(4)
        )
        gains.append(((found.max_loss_point - x).flatten(1) * w).sum(1))
    assert (gains[0] <= gains[1]).all()
    assert (gains[1] < gains[2]).all()


def test_coupled_rows_ask_together_and_return_a_batch_that_was_read() -> None:
    x = images(6, 1, 6, 6)
    oracle = sub_context(Centerd(Halfspace(weights(36), 0.0)), torch.zeros(6).long())
    seen: list[torch.Tensor] = []
    asked = oracle.objective.defenses[0].net.register_forward_hook(
        lambda _, given, __: seen.append(given[0])
    )  # type: ignore[attr-defined]
    found = Square(queries=50)(oracle, x, Linf(0.02), keys(6))
    asked.remove()
    assert oracle.meter.forward.tolist() == [50] * 6
    assert any(torch.equal(found.point - 0.1 * found.point.mean(0), batch) for batch in seen)


@pytest.mark.parametrize("space", [L1(1.0)])
def test_other_norms_are_refused(space: Ball) -> None:
    oracle = sub_context(Halfspace(weights(36), 0.0), torch.zeros(2).long())
    with pytest.raises(ValueError, match="supports p=2 and p=inf, got p=1"):
        Square()(oracle, images(2, 1, 6, 6), space, keys(2))
    with pytest.raises(PermissionError):
        Square()(
            sub_context(Halfspace(weights(36), 0.0), torch.zeros(2).long(), access="decision"),
            images(2, 36),
            Linf(0.1),
            keys(2),
        )


def test_coins_are_those_of_the_query_not_of_the_batch() -> None:
    """Two rows with the same id draw the same windows wherever they stand."""
    x = images(1, 1, 6, 6).expand(3, 1, 6, 6)
    toss = Keys.of(0, torch.tensor([4, 9, 4]))
    oracle = sub_context(Halfspace(weights(36), 100.0), torch.zeros(3).long())
    a, b, c = Square(queries=30)(oracle, x, Linf(0.1), toss).point
    assert torch.equal(a, c)
    assert not torch.equal(a, b)
