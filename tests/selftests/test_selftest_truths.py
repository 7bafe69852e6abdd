"""The truths of the self-test against brute force: every corner, dense grids, many draws."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from saddlepoint.selftests import CASES, Case
from saddlepoint.selftests.evaluator import Opaque
from saddlepoint.selftests.exact import meet, mixture, separable
from saddlepoint.selftests.problem import Problem, four_classes

BY_NAME = {case.name: case for case in CASES}
FEW = 6
# Answers depend on each pixel through a map that keeps order, then linearly: the worst point is a corner of what is allowed.
AT_CORNERS = (
    "plain net",
    "gradient killer",
    "flipped gradients",
    "quantizer",
    "bytes",
    "codebook",
    "one-hot answers",
    "labels only",
    "logits x 1000",
    "tanh logits",
    "cold softmax",
    "first score alone",
    "padded classes",
    "input clipping",
    "half precision",
    "batch statistics",
    "masked last exit",
    "no equilibrium",
    "last step's gradient",
    "vanishing chain",
    "anti-adversary",
    "snapping",
)


def first(case: Case, n: int = FEW) -> Problem:
    """The first images; of a problem with 64 pixels, whose corners nobody can count, one with 16 in its place."""
    problem = case.problem()
    problem = four_classes(radius=0.035, side=4) if problem.weight.shape[1] == 64 else problem
    return replace(problem, x=problem.x[:n], y=problem.y[:n])


def corners(problem: Problem, row: int) -> Tensor:
    """[65536, 1, 4, 4] all of them."""
    low, high = (side[row].to(problem.x.dtype) for side in problem.box())
    bits = (torch.arange(2**16)[:, None] >> torch.arange(16)) & 1
    return torch.where(bits.bool(), high, low).view(-1, 1, 4, 4)


@torch.no_grad()
def answers(case: Case, problem: Problem, x: Tensor) -> Tensor:
    z = Opaque(case.defense(problem), len(problem.weight))(x)
    return torch.where(z.isnan().any(1), -1, z.argmax(1))


def test_there_are_at_least_thirty_cases_and_each_says_why() -> None:
    assert len(CASES) >= 30
    assert len(BY_NAME) == len(CASES)
    assert all(case.why for case in CASES)


@pytest.mark.parametrize("name", AT_CORNERS)
def test_the_truth_is_what_the_worst_of_all_corners_leaves(name: str) -> None:
    case = BY_NAME[name]
    problem = first(case, 2 if name in ("vanishing chain", "last step's gradient") else FEW)
    left = [
        bool((answers(case, problem, corners(problem, k)) == problem.y[k]).all())
        for k in range(len(problem.y))
    ]
    assert case.truth(problem).low == pytest.approx(sum(left) / len(left), abs=1e-12)


@pytest.mark.parametrize("name", [case.name for case in CASES])
def test_the_truth_is_neither_nothing_nor_all_and_below_clean_accuracy(name: str) -> None:
    # Else an evaluator that always says 0, or the clean accuracy, would be right.
    case = BY_NAME[name]
    problem = case.problem()
    truth = case.truth(problem)
    assert 0.2 < truth.low <= truth.high < 0.85
    if not truth.random and name != "detector":
        assert (
            truth.high
            < float((answers(case, problem, problem.x) == problem.y).double().mean()) - 0.05
        )


@pytest.mark.parametrize(
    "name",
    [
        "shattered gradients",
        "thermometer code",
        "rounded transform",
        "sure exit",
        "hard router",
        "no number",
    ],
)
def test_no_point_of_many_breaks_what_is_said_to_be_safe(name: str) -> None:
    case = BY_NAME[name]
    problem = first(case, 20)
    low, high = (side.to(problem.x.dtype) for side in problem.box())
    alone = [
        replace(problem, x=problem.x[k : k + 1], y=problem.y[k : k + 1])
        for k in range(len(problem.y))
    ]
    safe = [case.truth(one).low == 1 for one in alone]
    assert 0 < sum(safe) < len(safe)
    generator = torch.Generator().manual_seed(0)
    for k in itertools.compress(range(len(safe)), safe):
        share = torch.rand(4000, 16, generator=generator)
        share = torch.where(
            torch.rand(4000, 1, generator=generator) < 0.5, share.round(), share
        )  # half of them corners
        points = (low[k] + (high[k] - low[k]) * share).view(-1, 1, 4, 4)
        assert (answers(case, problem, points) == problem.y[k]).all()


def test_a_mixture_is_least_where_a_dense_grid_says() -> None:
    generator = torch.Generator().manual_seed(3)
    weights = torch.randn(4, 2, generator=generator)
    biases = 0.3 * torch.randn(4, generator=generator)
    center = torch.randn(8, 2, generator=generator, dtype=torch.float64)
    low = center - 0.4
    high = center + 0.4
    sign = torch.tensor([1.0, -1.0] * 4, dtype=torch.float64)
    shares = [0.4, 0.3, 0.2, 0.1]
    axis = torch.linspace(0, 1, 401, dtype=torch.float64)
    grid = low[:, None] + (high - low)[:, None] * torch.cartesian_prod(axis, axis)  # [8, 401^2, 2]
    right = sign[:, None, None] * (grid @ weights.double().T + biases.double()) > 0
    least = (right.double() @ torch.tensor(shares, dtype=torch.float64)).amin(1)
    torch.testing.assert_close(
        mixture(weights, biases, shares, low, high, sign), least, rtol=0, atol=1e-9
    )
    assert len(least.unique()) >= 3


def test_half_spaces_meet_in_a_box_where_a_dense_grid_says() -> None:
    generator = torch.Generator().manual_seed(4)
    normals = torch.randn(60, 3, 2, generator=generator, dtype=torch.float64)
    offsets = torch.randn(60, 3, generator=generator, dtype=torch.float64)
    low = -torch.ones(60, 2, dtype=torch.float64)
    high = torch.ones(60, 2, dtype=torch.float64)
    axis = torch.linspace(-1, 1, 401, dtype=torch.float64)
    values = torch.cartesian_prod(axis, axis) @ normals.mT + offsets[:, None]  # [60, 401^2, 3]
    deepest = values.amin(-1).amax(1)
    clear = deepest.abs() > 0.03  # a step of the grid, 0.005, times a slope of at most 4 or so
    assert 15 < int((deepest[clear] > 0).sum()) < 45
    assert torch.equal(meet(normals, offsets, low, high)[clear], deepest[clear] > 0)


def test_separable_logits_are_worst_where_all_combinations_say() -> None:
    generator = torch.Generator().manual_seed(5)
    table = torch.randn(5, 3, 4, generator=generator, dtype=torch.float64)  # [choice, pixel, class]
    choices = torch.arange(5, dtype=torch.float64)
    low = torch.tensor([[0.0, 1, 2], [1, 1, 0]]).double()
    high = torch.tensor([[2.0, 3, 4], [4, 1, 2]]).double()
    y = torch.tensor([0, 2])
    worst = []
    for row in range(2):
        values = []
        for picked in itertools.product(
            *(range(int(a), int(b) + 1) for a, b in zip(low[row], high[row], strict=True))
        ):
            z = torch.stack([table[level, pixel] for pixel, level in enumerate(picked)]).sum(0)
            values.append(float(torch.cat([z[: y[row]], z[y[row] + 1 :]]).amax() - z[y[row]]))
        worst.append(max(values))
    found = separable(lambda t: table[t.long(), torch.arange(3)], choices, low, high, y)
    torch.testing.assert_close(found, torch.tensor(worst, dtype=torch.float64), rtol=0, atol=1e-12)


def test_rounded_coefficients_are_those_that_a_dense_grid_reaches() -> None:
    """One pair of pixels, so that 601^2 points see every cell of coefficients with more than a sliver inside."""
    generator = torch.Generator().manual_seed(6)
    x = 0.2 + 0.6 * torch.rand(20, 1, 1, 2, generator=generator)
    problem = Problem(
        x, torch.randint(0, 3, (20,), generator=generator), 0.08, torch.randn(3, 2), torch.zeros(3)
    )
    problem = replace(problem, weight=torch.randn(3, 2, generator=generator))
    case = BY_NAME["rounded transform"]
    axis = torch.linspace(0, 1, 601)
    low, high = (side.float() for side in problem.box())
    layer = case.defense(replace(problem, weight=torch.zeros(3, 16)))[0]
    left = []
    for k in range(20):
        points = (low[k] + (high[k] - low[k]) * torch.cartesian_prod(axis, axis)).view(-1, 1, 1, 2)
        z = layer(points).flatten(1) @ problem.weight.T
        left.append(bool((z.argmax(1) == problem.y[k]).all()))
    assert case.truth(problem).low == sum(left) / 20
    assert 0 < sum(left) < 20


@pytest.mark.parametrize("name", ["lucky noise", "noisy logits", "dropout left on"])
def test_the_expectation_at_the_worst_corner_is_what_many_draws_give(name: str) -> None:
    """At the claimed corner a mean of 20000 draws is off by 0.0035 at most, so by less than 0.014; no other corner does worse."""
    case = BY_NAME[name]
    problem = first(case, 1)
    away = problem.weight.double()[1 - problem.y] - problem.weight.double()[problem.y]
    low, high = problem.box()
    worst = torch.where(away > 0, high, low).float().view(1, 1, 4, 4)
    others = corners(problem, 0)[
        torch.randint(0, 2**16, (20,), generator=torch.Generator().manual_seed(1))
    ]

    def share(point: Tensor, draws: int) -> float:
        model = Opaque(case.defense(problem), 4)
        return float((model(point.expand(draws, 1, 4, 4)).argmax(1) == problem.y).double().mean())

    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        assert share(worst, 20000) == pytest.approx(case.truth(problem).low, abs=0.014)
        assert (
            min(share(other, 2000) for other in others)
            > case.truth(problem).low - 4 * 0.5 / 2000**0.5
        )
