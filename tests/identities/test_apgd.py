"""Auto-PGD and PGD against their recursions written out, and FGSM."""

from __future__ import annotations

import math

import pytest
import torch
from tests.problems import Static, keys, oracle, smooth, uniform
from torch import Tensor

from saddlepoint.attacks.apgd import APGD, _HalvedSteps, checkpoints
from saddlepoint.attacks.best import BestSoFar
from saddlepoint.attacks.losses import Loss, cross_entropy, margin
from saddlepoint.attacks.pgd import FGSM, PGD
from saddlepoint.attacks.spaces import Ball
from saddlepoint.defenses import Context, Trace
from saddlepoint.gradients import Evaluation


@pytest.mark.parametrize(
    ("steps", "after"),
    [
        (100, [21, 40, 56, 69, 79, 86, 92, 98]),  # counted from 0, as in the published schedule
        (50, [10, 20, 29, 37, 44]),
        (10, [1, 2, 3, 4, 5, 6, 7, 8, 9]),
    ],
)
def test_checkpoints_are_those_of_the_paper(steps: int, after: list[int]) -> None:
    assert [k - 1 for k in checkpoints(steps)] == after


def test_the_step_size_is_halved_under_both_conditions_of_the_paper() -> None:
    """Four rows with prescribed outcomes; the gaps between checkpoints are 22, 19, 16, 13, ..."""
    schedule = _HalvedSteps(torch.zeros(4, 2), 0.5, 100, 0.75)
    halved: dict[int, list[bool]] = {}
    for k in range(1, 81):
        # 12 of 16 and 13 of 16 steps between 41 and 57 increase the loss.
        increased = torch.tensor([True, not 41 < k <= 45, not 41 < k <= 44, True])
        best = BestSoFar(torch.zeros(4, 2), coupled=False)
        best.update(
            torch.ones(4, 2),
            Evaluation(
                torch.tensor([k, k, k, 0], dtype=torch.float32), torch.zeros(4, dtype=torch.bool)
            ),
        )
        back = schedule.update(k, increased, best)
        if k in set(checkpoints(100)):
            assert back is not None
            halved[k] = back.tolist()
        else:
            assert back is None
    none = [False] * 4
    # The loss of the fourth row is constant. Its step is halved at every second checkpoint only,
    # because condition 2 does not apply after a checkpoint that halved the step.
    fourth = [False, False, False, True]
    assert halved == {22: none, 41: fourth, 57: [False, True, False, False], 70: fourth, 80: none}
    assert schedule.step(torch.zeros(4, 2)).flatten().tolist() == [1.0, 0.5, 1.0, 0.25]


def algorithm_1(
    f: Loss, x: Tensor, y: Tensor, center: Tensor, space: Ball, steps: int
) -> list[Tensor]:
    """Croce & Hein 2020, Algorithm 1, for one row."""
    w = []
    p = [0.0, 0.22]
    # p_{j+1} = p_j + max(p_j - p_{j-1} - 0.03, 0.06)
    while math.floor(p[-1] * steps + 1e-9) <= steps:
        w.append(math.floor(p[-1] * steps + 1e-9))
        p.append(p[-1] + max(p[-1] - p[-2] - 0.03, 0.06))

    def value_and_grad(v: Tensor) -> tuple[float, Tensor]:
        v = v.detach().requires_grad_()
        value = f(v, y).sum()
        return value.item(), torch.autograd.grad(value, v)[0]

    queried = [x]
    eta = 2 * space.radius
    value, grad = value_and_grad(x)
    best = x
    best_value = value
    best_grad = grad
    before = x
    increases = 0
    last = 0
    eta_then = math.nan
    best_then = math.nan
    for k in range(1, steps + 1):
        direction = grad.sign() if space.p == math.inf else grad / grad.norm()
        z = space.project(x + eta * direction, center)
        new = z if k == 1 else space.project(x + 0.75 * (z - x) + 0.25 * (x - before), center)
        before = x
        x = new
        value_before = value
        queried.append(x)
        value, grad = value_and_grad(x)
        increases += value > value_before
        if value > best_value:
            best = x
            best_value = value
            best_grad = grad
        if k in w:
            too_few = increases <= 0.75 * (k - last)
            stalled = eta_then == eta and best_then == best_value
            increases = 0
            last = k
            eta_then = eta
            best_then = best_value
            if too_few or stalled:
                eta = eta / 2
                x = best
                grad = best_grad
    return queried


@pytest.mark.parametrize("p", [math.inf, 2])
@pytest.mark.parametrize("loss", [cross_entropy, margin])
def test_every_queried_point_is_that_of_algorithm_1(p: float, loss: Loss) -> None:
    """With 100 steps, 0.22 N, 0.03 N and 0.06 N are whole numbers.

    At a flat maximum two points with values equal to the last bit, 1e-16, may be 1e-8 apart, and
    either may be the best: hence the tolerance.
    """
    net = smooth(7)
    center = uniform(3, 6, 6)
    space = Ball(p, {math.inf: 0.3, 2: 0.8}[p])
    y = net(center).argmax(1)
    queried = []

    class Recording(Static):
        def trace(self, x: Tensor, ctx: Context) -> Trace:
            queried.append(x.detach())
            return super().trace(x, ctx)

    found = APGD(100)(oracle(Recording(net), y, loss=loss), center, space, keys(6))
    queries = torch.stack(queried)
    for i in range(6):
        row = slice(i, i + 1)
        want = torch.cat(
            algorithm_1(
                lambda v, y: loss(net(v), y), queries[0][row], y[row], center[row], space, 100
            )
        )
        torch.testing.assert_close(queries[:, i], want, rtol=0, atol=1e-7)
    values = torch.stack([loss(net(x), y) for x in queried])
    torch.testing.assert_close(
        loss(net(found.max_loss_point), y), values.amax(0), rtol=0, atol=1e-12
    )


def test_every_queried_point_of_pgd_follows_its_recursion() -> None:
    """x <- P(x + step ascent(v)), v <- momentum v + g / mean |g|, from the center."""
    net = smooth(7)
    center = uniform(3, 4, 6)
    space = Ball(2, 0.5)
    y = net(center).argmax(1)
    queried = []

    class Recording(Static):
        def trace(self, x: Tensor, ctx: Context) -> Trace:
            queried.append(x.detach())
            return super().trace(x, ctx)

    attack = PGD(steps=6, step_size=0.1, random_start=False, momentum=0.8)
    attack(oracle(Recording(net), y), center, space, keys(4))
    x = center
    velocity = torch.zeros_like(center)
    for query in queried:
        torch.testing.assert_close(query, x, rtol=0, atol=1e-13)
        v = x.detach().requires_grad_()
        (g,) = torch.autograd.grad(margin(net(v), y).sum(), v)
        velocity = 0.8 * velocity + g / g.abs().mean(1, keepdim=True)
        x = space.project(x + 0.1 * velocity / velocity.norm(dim=1, keepdim=True), center)
    assert len(queried) == 7


def test_fgsm_is_one_step_to_the_edge_of_the_set() -> None:
    net = smooth(7)
    center = 0.5 + 0.1 * uniform(3, 4, 6)
    space = Ball(math.inf, 0.1)
    y = net(center).argmax(1)
    v = center.clone().requires_grad_()
    (g,) = torch.autograd.grad(margin(net(v), y).sum(), v)
    point = FGSM()(oracle(Static(net), y), center, space, keys(4)).point
    torch.testing.assert_close(point, center + 0.1 * g.sign(), rtol=0, atol=1e-16)


@pytest.mark.parametrize("attack", [PGD, APGD])
def test_zero_steps_raise_an_error(attack: type[PGD | APGD]) -> None:
    with pytest.raises(ValueError, match="needs at least one step, got steps=0"):
        attack(steps=0)
