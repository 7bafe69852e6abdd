"""LevelSearch: options of pixels, exhaustive truths on bits and levels, and budgets."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from tests.attacks.toys import Centered, images, keys, oracle_for
from torch import Tensor, nn

from saddlepoint.attacks.level_search import LevelSearch
from saddlepoint.attacks.pixel_levels import Ends, PixelLevels
from saddlepoint.attacks.spaces import L2, Ball, Linf
from saddlepoint.defenses import Plain
from saddlepoint.selftests.discrete import BitsNet, worst_bits
from saddlepoint.selftests.problem import relabeled, two_classes

HALF = torch.tensor(0.5, dtype=torch.float64)
ABOVE = torch.nextafter(HALF, HALF + 1)
BITS = PixelLevels(torch.stack([0 * HALF, ABOVE])[None], torch.stack([HALF, 0 * HALF + 1])[None])


def quarters(x: Tensor) -> Tensor:
    return (4 * x).floor().clamp(max=3)


# [k / 4, (k + 1) / 4) for k = 0..3; the last interval contains 1.
START = torch.arange(4, dtype=torch.float64)[None] / 4
END = torch.cat([torch.nextafter(START[:, 1:], 0 * START[:, 1:]), torch.ones_like(START[:, :1])], 1)
QUARTERS = PixelLevels(START, END)


class OnLevels(nn.Module):
    """Three classes; logits are nonlinear in the levels of pairs of pixels."""

    def __init__(self, pixels: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(2)
        self.first = torch.randn(pixels, 20, generator=generator, dtype=torch.float64)
        self.second = torch.randn(20, 3, generator=generator, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        return (quarters(x.flatten(1)) @ self.first).sin() @ self.second


def test_options_are_the_levels_that_meet_the_ball() -> None:
    x = torch.tensor([[0.05, 0.24, 0.5, 0.74, 1.0]], dtype=torch.float64)
    options = QUARTERS.options(x, Linf(0.1))
    assert options.clean.tolist() == [[0, 0, 2, 2, 3]]
    assert options.lowest.tolist() == [[0, 0, 1, 2, 3]]
    assert options.highest.tolist() == [[0, 1, 2, 3, 3]]
    assert options.free.tolist() == [[False, True, True, True, False]]


@pytest.mark.parametrize("radius", [0.01, 0.1, 0.4])
def test_the_value_of_an_option_has_its_level_and_lies_in_the_ball(radius: float) -> None:
    x = images(50, 12)
    space = Linf(radius)
    options = QUARTERS.options(x, space)
    for level in range(4):
        option = torch.full_like(options.clean, level).clamp(options.lowest, options.highest)
        value = options.values(option)
        assert torch.equal(quarters(value).long(), option)
        assert space.contains(value, x).all()


def test_the_value_of_the_clean_level_is_the_clean_value() -> None:
    x = torch.tensor([[0.1, 0.3, 0.9]], dtype=torch.float64)
    options = QUARTERS.options(x, Linf(0.3))
    assert torch.equal(options.values(options.clean), x)


def test_pixels_may_have_levels_of_their_own() -> None:
    inf = torch.inf
    levels = PixelLevels(
        torch.tensor([[0.0, 0.3, inf], [0.0, 0.5, 0.7]]),
        torch.tensor([[0.29, 1.0, inf], [0.49, 0.69, 1.0]]),
    )
    options = levels.options(torch.tensor([[0.2, 0.6]]), Linf(0.15))
    assert options.lowest.tolist() == [[0, 0]]
    assert options.highest.tolist() == [[1, 2]]
    torch.testing.assert_close(
        options.values(options.highest), torch.tensor([[0.3, 0.7]]), rtol=0, atol=2e-5
    )


def test_ends_leave_out_what_the_box_does_not_allow() -> None:
    options = Ends().options(torch.tensor([[0.0, 0.5, 1.0]]), Linf(0.1))
    assert options.lowest.tolist() == [[1, 0, 0]]
    assert options.highest.tolist() == [[2, 2, 1]]


@pytest.mark.parametrize("gradients", [True, False])
def test_the_search_finds_every_error_on_bits(gradients: bool) -> None:
    """Compared with all combinations of up to 2^14 reachable bits.

    The straight-through gradient of a comparison by `where` does not exist: with gradients, they
    are zero and the order is random.
    """
    problem = two_classes(n=40, radius=0.25)
    net = BitsNet(16)
    problem = relabeled(problem, net)
    robust = worst_bits(net, problem)
    x = problem.x.double()

    class WithZeroGradient(nn.Module):
        def forward(self, v: Tensor) -> Tensor:
            return net(v) + 0 * v.flatten(1).sum(1, keepdim=True)

    oracle = oracle_for(WithZeroGradient(), problem.y)
    found = LevelSearch(BITS, 3000, gradients)(oracle, x, Linf(0.25), keys(40))
    assert torch.equal(net(found.point).argmax(1) == problem.y, robust)


def test_the_search_finds_the_highest_value_over_levels() -> None:
    x = images(12, 6)
    net = OnLevels(6)
    y = net(x).argmax(1)
    space = Linf(0.12)
    options = QUARTERS.options(x, space)
    found = LevelSearch(QUARTERS, 600, gradients=False)(
        oracle_for(net, y), x, space, keys(12)
    ).point
    for row in range(12):
        choices = [
            range(int(a), int(b) + 1)
            for a, b in zip(options.lowest[row], options.highest[row], strict=True)
        ]
        every = torch.tensor(list(product(*choices)), dtype=torch.float64) / 4 + 0.1
        robust = bool((net(every).argmax(1) == y[row]).all())
        assert bool(net(found[row : row + 1]).argmax(1) == y[row]) == robust


def test_a_pixel_without_influence_at_the_image_gets_the_direction_of_other_points() -> None:
    """relu(x - 0.55) has no gradient at 0.5; the worst point is the upper end of all pixels."""
    x = torch.full((3, 40), 0.5, dtype=torch.float64)

    class Dead(nn.Module):
        def forward(self, v: Tensor) -> Tensor:
            margin = 1.7 - (v - 0.55).relu().sum(1)
            return torch.stack([margin, -margin], 1)

    y = torch.zeros(3, dtype=torch.long)
    found = LevelSearch(queries=60)(oracle_for(Dead(), y), x, Linf(0.1), keys(3))
    assert (Dead()(found.point).argmax(1) == 1).all()


def test_rows_without_options_are_not_queried_and_still_move() -> None:
    x = torch.full((2, 4), 0.1, dtype=torch.float64)
    oracle = oracle_for(OnLevels(4), torch.zeros(2, dtype=torch.long))
    found = LevelSearch(QUARTERS)(oracle, x, Linf(0.05), keys(2))
    assert not oracle.meter.forward.any()
    assert (found.point != x).any(1).all()
    assert Linf(0.05).contains(found.point, x).all()


def test_queries_of_one_pixel_are_scores() -> None:
    x = images(6, 6)
    oracle = oracle_for(Plain(OnLevels(6)), OnLevels(6)(x).argmax(1))
    LevelSearch(Ends(), 100)(oracle, x, Linf(0.001), keys(6))
    assert (oracle.meter.forward <= 100).all()
    assert (oracle.meter.backward < oracle.meter.forward).all()


@pytest.mark.parametrize(("space", "text"), [(L2(1.0), "p=inf"), (Linf(0.1), "independent rows")])
def test_what_is_not_supported_raises(space: Ball, text: str) -> None:
    x = images(2, 6)
    y = torch.zeros(2, dtype=torch.long)
    net = Centered(OnLevels(6)) if space.p == torch.inf else OnLevels(6)
    with pytest.raises(ValueError, match=text):
        LevelSearch()(oracle_for(net, y), x, space, keys(2))


def test_no_query_raises() -> None:
    with pytest.raises(ValueError, match="at least one query"):
        LevelSearch(queries=0)


def test_few_combinations_are_all_tried() -> None:
    """Only the combination of all upper levels is an error, and every other change lowers it."""
    x = torch.full((4, 7), 0.49, dtype=torch.float64)

    class AllBits(nn.Module):
        def forward(self, v: Tensor) -> Tensor:
            on = (v > 0.5).double().sum(1)
            margin = torch.where(on == 7, -1.0, 1.0 + on)
            return torch.stack([margin, -margin], 1)

    oracle = oracle_for(AllBits(), torch.zeros(4, dtype=torch.long))
    found = LevelSearch(BITS, 128, gradients=False)(oracle, x, Linf(0.02), keys(4))
    assert (AllBits()(found.point).argmax(1) == 1).all()
    assert (oracle.meter.forward <= 128).all()


def test_combinations_are_counted_and_distinct() -> None:
    options = QUARTERS.options(torch.tensor([[0.24, 0.05, 0.5]], dtype=torch.float64), Linf(0.3))
    count = int(options.combinations[0])
    every = torch.cat([options.combination(k) for k in range(count)])
    assert count == 3 * 2 * 4
    assert len(every.unique(dim=0)) == count
    assert ((every >= options.lowest) & (every <= options.highest)).all()
