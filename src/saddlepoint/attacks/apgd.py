"""Auto-PGD: projected gradient ascent with momentum and an automatic step size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from saddlepoint.attacks.base import Attack
from saddlepoint.attacks.best import AttackResult, BestSoFar, block, overwrite_rows, select_rows
from saddlepoint.attacks.oracle import Differentiates
from saddlepoint.attacks.spaces import Ball, per_example
from saddlepoint.defenses import Access
from saddlepoint.rng import Keys


@dataclass(frozen=True)
class APGD(Attack[Differentiates]):
    """Auto-PGD, Algorithm 1 of Croce & Hein 2020.

    For p = 1 it makes the sparse steps of Croce & Hein 2021 (Sec. 3) in balls of shrinking radius.
    It costs `steps` gradients and one evaluation. One difference to the released code: the first
    checkpoint compares with the value at the starting point, there with an unset entry of zero.

    Args:
        steps: number of steps, at least 1; default 100.
        rho: share of the steps between two checkpoints that must increase the loss, else the step
            size is halved; default 0.75.
        momentum: weight of the current step against the previous one; default 0.75. For p = 1 it
            is not used.
    """

    steps: int = 100
    rho: float = 0.75
    momentum: float = 0.75
    needs: ClassVar[Access] = "gradient"

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"APGD needs at least one step, got steps={self.steps}.")

    @property
    def calls(self) -> int:
        return self.steps + 1

    def scaled(self, factor: int) -> APGD:
        return replace(self, steps=factor * self.steps)

    def stays_inside(self, space: Ball) -> bool:
        return space.p != 1  # else it starts in wider balls

    def __call__(
        self, oracle: Differentiates, center: Tensor, space: Ball, keys: Keys
    ) -> AttackResult:
        start = space.sample(center, keys)
        for ball, calls in self._stages(space):
            schedule = self._schedule(center, ball, calls - 1)
            x = ball.project(start, center)
            momentum = 1.0 if space.p == 1 else self.momentum
            best = ascend(oracle, center, ball, x, calls, schedule, momentum, final=ball == space)
            start = best.max_loss_point
        return best.result

    def _stages(self, space: Ball) -> list[tuple[Ball, int]]:
        """The balls in which the attack runs, and the oracle calls in each.

        For p = 1 the radius is 3, 2 and 1 times that of the set (Croce & Hein 2021, Sec. 3.3).
        """
        part = int(0.3 * self.calls)
        if space.p != 1 or part < 2:
            return [(space, self.calls)]
        wider = [(replace(space, radius=scale * space.radius), part) for scale in (3, 2)]
        return [*wider, (space, self.calls - 2 * part)]

    def _schedule(self, center: Tensor, space: Ball, steps: int) -> StepSchedule:
        if space.p == 1:
            return _SparseSteps(center, space.radius, steps)
        return _HalvedSteps(center, space.radius, steps, self.rho)


class StepSchedule(Protocol):
    """The step size of each row, the share of its coordinates that move, and when it goes back."""

    @property
    def density(self) -> Tensor | None:
        """[N] share of the coordinates that move, for p = 1; None: not sparse."""
        ...

    def step(self, x: Tensor) -> Tensor:
        """The step size, [N, 1, ...] or a scalar, in units of the input."""
        ...

    def update(self, k: int, increased: Tensor, best: BestSoFar) -> Tensor | None:
        """Update the schedule after a step.

        Args:
            k: number of the step, from 1.
            increased: rows where the step increased the loss, [N] bool.
            best: the best points so far.

        Returns:
            [N] bool: rows that go back to their point of highest loss. None: no row does.
        """
        ...


def ascend(
    oracle: Differentiates,
    center: Tensor,
    space: Ball,
    x: Tensor,
    calls: int,
    schedule: StepSchedule,
    momentum: float,
    *,
    final: bool = True,
) -> BestSoFar:
    """Projected gradient ascent with a heavy ball:

        z = project(x + step ascent(grad)),
        x <- project(x + momentum (z - x) + (1 - momentum) (x - x_old)).

    The first step ends at z.

    Args:
        oracle: evaluates points and counts passes.
        center: clean inputs, [N, ...].
        space: the perturbation set.
        x: starting points in the set, [N, ...].
        calls: oracle calls, including the one at the start.
        schedule: step sizes.
        momentum: weight of z - x, in (0, 1].
        final: the last call evaluates without gradient (default). False if another run follows.
    """
    region = space.around(center)
    best = BestSoFar(center, oracle.coupled)
    x_old = x
    evaluation, grad = oracle.gradient(x)
    best.update(x, evaluation)
    value = block(evaluation.value, oracle.coupled)
    best_grad = grad.clone()  # its rows are overwritten
    for k in range(1, calls):
        direction = space.ascent(grad, x, schedule.density)
        z = region.project(torch.addcmul(x, schedule.step(x), direction))
        a = momentum if k > 1 else 1.0
        x_new = z
        if a < 1:
            x_new = region.project(x.lerp(z, a).add_(x - x_old, alpha=1 - a))
        x_old = x
        x = x_new
        if final and k == calls - 1:
            evaluation = oracle.score(x)
        else:
            evaluation, grad = oracle.gradient(x)
        best_grad = overwrite_rows(best_grad, best.update(x, evaluation), grad)
        value_old = value
        value = block(evaluation.value, oracle.coupled)
        back = schedule.update(k, value > value_old, best)
        if back is not None:
            x = select_rows(back, best.max_loss_point, x)
            grad = select_rows(back, best_grad, grad)
    return best


def checkpoints(steps: int) -> Iterator[int]:
    """The steps, counted from 1, after which APGD may halve its step size.

    The first gap is 22 % of the steps. Each gap is shorter by 3 percentage points, down to 6 %.
    """
    gap = max(int(0.22 * steps), 1)
    at = 0
    while (at := at + gap) <= steps:
        yield at
        gap = max(gap - max(int(0.03 * steps), 1), max(int(0.06 * steps), 1))


class _HalvedSteps:
    """Steps of 2 radii, halved at a checkpoint under one of two conditions.

    Condition 1: at most a share `rho` of the steps since the last checkpoint increased the loss.
    Condition 2: the highest loss did not increase since the last checkpoint, and the step size was
    not halved there.
    """

    density: Tensor | None = None

    def __init__(self, center: Tensor, radius: float, steps: int, rho: float) -> None:
        self._rho = rho
        self._checkpoints = set(checkpoints(steps))
        self._since = 0
        self._size = center.new_full((len(center),), 2 * radius)
        self._increases = torch.zeros_like(self._size)
        self._max_loss = torch.full_like(self._size, -torch.inf)
        self._halved = torch.ones(len(center), dtype=torch.bool, device=center.device)

    def step(self, x: Tensor) -> Tensor:
        return per_example(self._size, x)

    def update(self, k: int, increased: Tensor, best: BestSoFar) -> Tensor | None:
        self._increases = self._increases + increased
        self._since = self._since + 1
        if k not in self._checkpoints:
            return None
        max_loss = block(best.max_loss, best.coupled)
        too_few = self._increases <= self._rho * self._since  # condition 1
        stalled = ~self._halved & (max_loss <= self._max_loss)  # condition 2
        self._halved = too_few | stalled
        self._max_loss = max_loss
        self._size = torch.where(self._halved, self._size / 2, self._size)
        self._increases = torch.zeros_like(self._increases)
        self._since = 0
        return self._halved


class _SparseSteps:
    """Steps on the coordinates with the largest gradient entries, for p = 1.

    Their number is two thirds of the number of coordinates that the best point has changed. The
    step size shrinks by a factor of 1.5, and is reset to the radius when the best point has become
    sparser.
    """

    _SHRINK = 1.5
    _MIN_SIZE = 0.1  # in radii

    def __init__(self, center: Tensor, radius: float, steps: int) -> None:
        self._radius = radius
        self._period = max(int(0.04 * steps), 1)
        self._center = center
        self._d = center[0].numel()
        self._size = center.new_full((len(center),), radius)
        self._changed = center.new_full((len(center),), float(self._d))
        self.density = center.new_full((len(center),), 0.2)

    def step(self, x: Tensor) -> Tensor:
        return per_example(self._size, x)

    def update(self, k: int, increased: Tensor, best: BestSoFar) -> Tensor | None:  # noqa: ARG002
        if k % self._period:
            return None
        delta = (best.max_loss_point - self._center).flatten(1).abs()
        changed = (delta > 1e-6 * self._radius).sum(1).to(self._size)  # ignore rounding
        sparser = changed / self._changed.clamp(min=1) < 0.95
        self.density = changed / self._d / self._SHRINK
        shorter = (self._size / self._SHRINK).clamp(min=self._MIN_SIZE * self._radius)
        self._size = torch.where(sparser, self._radius, shorter)
        self._changed = changed
        return sparser
