"""The truths of the self-test agree with brute force: all corners, dense grids, many draws."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from saddlepoint.selftests import CASES, Case
from saddlepoint.selftests.evaluator import LogitsModule
from saddlepoint.selftests.exact import meet, mixture, separable
from saddlepoint.selftests.problem import Problem, four_classes

BY_NAME = {case.name: case for case in CASES}
FEW = 6
# The prediction is a linear function of monotone functions of the pixels, so the worst point is a
# corner of the box.
AT_CORNERS = (
    "plain net",
    "gradient killer",
    "flipped gradients",
    "quantizer",
    "bytes",
    "codebook",
    "dead zone",
    "few levels",
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


def first_images(case: Case, n: int = FEW) -> Problem:
    """The first images; a problem with 64 pixels is replaced by one with 16.

    The corners of a box with 64 pixels are too many to enumerate.
    """
    problem = case.problem()
    problem = four_classes(radius=0.035, side=4) if problem.weight.shape[1] == 64 else problem
    return replace(problem, x=problem.x[:n], y=problem.y[:n])


def corners(problem: Problem, row: int) -> Tensor:
    """[65536, 1, 4, 4] all corners of the box of one image."""
    low, high = (side[row].to(problem.x.dtype) for side in problem.box())
    bits = (torch.arange(2**16)[:, None] >> torch.arange(16)) & 1
    return torch.where(bits.bool(), high, low).view(-1, 1, 4, 4)


@torch.no_grad()
def predictions(case: Case, problem: Problem, x: Tensor) -> Tensor:
    """The predicted labels; -1 where an output is NaN."""
    z = LogitsModule(case.defense(problem), len(problem.weight))(x)
    return torch.where(z.isnan().any(1), -1, z.argmax(1))


def test_there_are_at_least_thirty_cases_with_unique_names_and_reasons() -> None:
    assert len(CASES) >= 30
    assert len(BY_NAME) == len(CASES)
    assert all(case.why for case in CASES)


@pytest.mark.parametrize("name", AT_CORNERS)
def test_the_truth_is_the_accuracy_at_the_worst_of_all_corners(name: str) -> None:
    case = BY_NAME[name]
    problem = first_images(case, 2 if name in ("vanishing chain", "last step's gradient") else FEW)
    robust = [
        bool((predictions(case, problem, corners(problem, k)) == problem.y[k]).all())
        for k in range(len(problem.y))
    ]
    assert case.truth(problem).low == pytest.approx(sum(robust) / len(robust), abs=1e-12)


@pytest.mark.parametrize("name", [case.name for case in CASES])
def test_the_truth_is_between_20_and_85_percent_and_below_clean_accuracy(name: str) -> None:
    # Otherwise an evaluator that always reports 0 or the clean accuracy would be right.
    case = BY_NAME[name]
    problem = case.problem()
    truth = case.truth(problem)
    assert 0.2 < truth.low <= truth.high < 0.85
    if not truth.random and name != "detector":
        correct = predictions(case, problem, problem.x) == problem.y
        assert truth.high < float(correct.double().mean()) - 0.05


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
def test_no_random_point_breaks_an_image_that_is_robust_by_the_truth(name: str) -> None:
    case = BY_NAME[name]
    problem = first_images(case, 20)
    low, high = (side.to(problem.x.dtype) for side in problem.box())
    single = [
        replace(problem, x=problem.x[k : k + 1], y=problem.y[k : k + 1])
        for k in range(len(problem.y))
    ]
    robust = [case.truth(one).low == 1 for one in single]
    assert 0 < sum(robust) < len(robust)
    generator = torch.Generator().manual_seed(0)
    for k in itertools.compress(range(len(robust)), robust):
        position = torch.rand(4000, 16, generator=generator)
        is_corner = torch.rand(4000, 1, generator=generator) < 0.5
        position = torch.where(is_corner, position.round(), position)
        points = (low[k] + (high[k] - low[k]) * position).view(-1, 1, 4, 4)
        assert (predictions(case, problem, points) == problem.y[k]).all()


def test_the_worst_case_of_a_mixture_agrees_with_a_dense_grid() -> None:
    generator = torch.Generator().manual_seed(3)
    weights = torch.randn(4, 2, generator=generator)
    biases = 0.3 * torch.randn(4, generator=generator)
    center = torch.randn(8, 2, generator=generator, dtype=torch.float64)
    low = center - 0.4
    high = center + 0.4
    sign = torch.tensor([1.0, -1.0] * 4, dtype=torch.float64)
    probabilities = [0.4, 0.3, 0.2, 0.1]
    axis = torch.linspace(0, 1, 401, dtype=torch.float64)
    grid = low[:, None] + (high - low)[:, None] * torch.cartesian_prod(axis, axis)  # [8, 401^2, 2]
    correct = sign[:, None, None] * (grid @ weights.double().T + biases.double()) > 0
    smallest = (correct.double() @ torch.tensor(probabilities, dtype=torch.float64)).amin(1)
    torch.testing.assert_close(
        mixture(weights, biases, probabilities, low, high, sign), smallest, rtol=0, atol=1e-9
    )
    assert len(smallest.unique()) >= 3


def test_the_intersection_of_half_spaces_with_a_box_agrees_with_a_dense_grid() -> None:
    generator = torch.Generator().manual_seed(4)
    normals = torch.randn(60, 3, 2, generator=generator, dtype=torch.float64)
    offsets = torch.randn(60, 3, generator=generator, dtype=torch.float64)
    low = -torch.ones(60, 2, dtype=torch.float64)
    high = torch.ones(60, 2, dtype=torch.float64)
    axis = torch.linspace(-1, 1, 401, dtype=torch.float64)
    values = torch.cartesian_prod(axis, axis) @ normals.mT + offsets[:, None]  # [60, 401^2, 3]
    deepest = values.amin(-1).amax(1)
    clear = deepest.abs() > 0.03  # the grid step, 0.005, times a slope of at most about 4
    assert 15 < int((deepest[clear] > 0).sum()) < 45
    assert torch.equal(meet(normals, offsets, low, high)[clear], deepest[clear] > 0)


def test_the_worst_case_of_separable_logits_agrees_with_all_combinations() -> None:
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


def test_the_truth_of_rounded_coefficients_agrees_with_a_dense_grid() -> None:
    """One pair of pixels: 601^2 points reach every rounding cell with more than a tiny overlap."""
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
    robust = []
    for k in range(20):
        points = (low[k] + (high[k] - low[k]) * torch.cartesian_prod(axis, axis)).view(-1, 1, 1, 2)
        z = layer(points).flatten(1) @ problem.weight.T
        robust.append(bool((z.argmax(1) == problem.y[k]).all()))
    assert case.truth(problem).low == sum(robust) / 20
    assert 0 < sum(robust) < 20


@pytest.mark.parametrize("name", ["lucky noise", "noisy logits", "dropout left on"])
def test_the_expectation_at_the_worst_corner_agrees_with_many_draws(name: str) -> None:
    """The accuracy at the worst corner is the truth, and no other corner has a lower one.

    The standard error of a mean of 20000 draws is at most 0.0035; 0.014 is four of them.
    """
    case = BY_NAME[name]
    problem = first_images(case, 1)
    away = problem.weight.double()[1 - problem.y] - problem.weight.double()[problem.y]
    low, high = problem.box()
    worst = torch.where(away > 0, high, low).float().view(1, 1, 4, 4)
    others = corners(problem, 0)[
        torch.randint(0, 2**16, (20,), generator=torch.Generator().manual_seed(1))
    ]

    def accuracy(point: Tensor, draws: int) -> float:
        model = LogitsModule(case.defense(problem), 4)
        return float((model(point.expand(draws, 1, 4, 4)).argmax(1) == problem.y).double().mean())

    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        truth = case.truth(problem).low
        assert accuracy(worst, 20000) == pytest.approx(truth, abs=0.014)
        assert min(accuracy(other, 2000) for other in others) > truth - 4 * 0.5 / 2000**0.5
