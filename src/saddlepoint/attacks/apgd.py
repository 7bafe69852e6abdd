"""Auto-PGD: projected ascent with momentum whose step size looks after itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from saddlepoint.attacks.base import Attack
from saddlepoint.attacks.best import AttackResult, BestSoFar, block
from saddlepoint.attacks.oracle import Differentiates
from saddlepoint.attacks.spaces import Ball, per_example
from saddlepoint.defenses import Access
from saddlepoint.rng import Keys


@dataclass(frozen=True)
class APGD(Attack[Differentiates]):
    """Algorithm 1 of Croce & Hein 2020; for p = 1 the sparse steps of Croce & Hein 2021 (Sec. 3) in balls of shrinking radius.

    Costs `steps` slopes and one reading. One departure from the released code: the first checkpoint compares with the value of the
    starting point, there with an empty slot that holds zero.
    """

    steps: int = 100
    rho: float = 0.75  # the share of steps that must have risen between two checkpoints
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

    def __call__(
        self, oracle: Differentiates, center: Tensor, space: Ball, keys: Keys
    ) -> AttackResult:
        start = space.sample(center, keys)
        for wide, calls in self._stages(space):
            pace = self._pace(center, wide, calls - 1)
            x = wide.project(start, center)
            momentum = 1.0 if space.p == 1 else self.momentum
            best = ascend(oracle, center, wide, x, calls, pace, momentum, final=wide == space)
            start = best.max_loss_point
        return best.result

    def _stages(self, space: Ball) -> list[tuple[Ball, int]]:
        """The ball at 3, 2 and 1 times its radius for p = 1 (Croce & Hein 2021, Sec. 3.3), else the ball itself."""
        part = int(0.3 * self.calls)
        if space.p != 1 or part < 2:
            return [(space, self.calls)]
        wider = [(replace(space, radius=scale * space.radius), part) for scale in (3, 2)]
        return [*wider, (space, self.calls - 2 * part)]

    def _pace(self, center: Tensor, space: Ball, steps: int) -> Pace:
        return (
            _Sparsening(center, space.radius, steps)
            if space.p == 1
            else _Halving(center, space.radius, steps, self.rho)
        )


class Pace(Protocol):
    """How far each row steps, on which share of its coordinates, and whether it goes back."""

    @property
    def density(self) -> Tensor | None: ...  # [N]; None: all coordinates
    def step(self, x: Tensor) -> Tensor: ...  # [N, 1, ...]
    def look(
        self, k: int, rose: Tensor, best: BestSoFar
    ) -> Tensor:  # [N] bool: which rows go back to their peak
        ...


def ascend(
    oracle: Differentiates,
    center: Tensor,
    space: Ball,
    x: Tensor,
    calls: int,
    pace: Pace,
    momentum: float,
    *,
    final: bool = True,
) -> BestSoFar:
    """Ascent with a heavy ball, from x: `calls` looks, the last a reading only if no ascent follows.

    z = project(x + step ascent(grad)),   x <- project(x + momentum (z - x) + (1 - momentum) (x - x_old)); the first step ends at z.
    """
    best = BestSoFar(center, oracle.coupled)
    x_old = x
    evaluation, grad = oracle.gradient(x)
    best.update(x, evaluation)
    value = block(evaluation.value, oracle.coupled)
    grad_peak = grad
    for k in range(1, calls):
        z = space.project(x + pace.step(x) * space.ascent(grad, x, pace.density), center)
        a = momentum if k > 1 else 1.0
        x_new = space.project(x + a * (z - x) + (1 - a) * (x - x_old), center) if a < 1 else z
        x_old = x
        x = x_new
        evaluation, grad = (
            (oracle.score(x), grad) if final and k == calls - 1 else oracle.gradient(x)
        )
        grad_peak = torch.where(per_example(best.update(x, evaluation), x), grad, grad_peak)
        value_old = value
        value = block(evaluation.value, oracle.coupled)
        back = per_example(pace.look(k, value > value_old, best), x)
        if back.any():
            x = torch.where(back, best.max_loss_point, x)
            grad = torch.where(back, grad_peak, grad)
    return best


def checkpoints(steps: int) -> Iterator[int]:
    """Steps after which APGD looks back, counted from 1: 22 % of the steps, then 3 points less each time, at least 6 %."""
    gap = max(int(0.22 * steps), 1)
    at = 0
    while (at := at + gap) <= steps:
        yield at
        gap = max(gap - max(int(0.03 * steps), 1), max(int(0.06 * steps), 1))


class _Halving:
    """Step 2 radius, halved at a checkpoint when too few steps rose, or when the peak stood still since an unhalved checkpoint."""

    density: Tensor | None = None

    def __init__(self, center: Tensor, radius: float, steps: int, rho: float) -> None:
        self._rho = rho
        self._checkpoints = set(checkpoints(steps))
        self._since = 0
        self._eta = center.new_full((len(center),), 2 * radius)
        self._rises = torch.zeros_like(self._eta)
        self._peak = torch.full_like(self._eta, -torch.inf)
        self._halved = torch.ones(len(center), dtype=torch.bool, device=center.device)

    def step(self, x: Tensor) -> Tensor:
        return per_example(self._eta, x)

    def look(self, k: int, rose: Tensor, best: BestSoFar) -> Tensor:
        """[N] bool: which rows go back to their peak."""
        self._rises = self._rises + rose
        self._since = self._since + 1
        if k not in self._checkpoints:
            return torch.zeros_like(self._halved)
        max_loss_point = block(best.max_loss, best.coupled)
        stalled = self._rises <= self._rho * self._since  # condition 1
        stuck = ~self._halved & (max_loss_point <= self._peak)  # condition 2
        self._halved = stalled | stuck
        self._peak = max_loss_point
        self._eta = torch.where(self._halved, self._eta / 2, self._eta)
        self._rises = torch.zeros_like(self._rises)
        self._since = 0
        return self._halved


class _Sparsening:
    """Steps on the strongest coordinates only, two thirds as many as the peak moved; long steps again whenever it got sparser."""

    _SHRINK = 1.5
    _LEAST = 0.1

    def __init__(self, center: Tensor, radius: float, steps: int) -> None:
        self._radius = radius
        self._period = max(int(0.04 * steps), 1)
        self._center = center
        self._d = center[0].numel()
        self._eta = center.new_full((len(center),), radius)
        self._moved = center.new_full((len(center),), float(self._d))
        self.density = center.new_full((len(center),), 0.2)

    def step(self, x: Tensor) -> Tensor:
        return per_example(self._eta, x)

    def look(self, k: int, rose: Tensor, best: BestSoFar) -> Tensor:  # noqa: ARG002
        if k % self._period:
            return torch.zeros_like(self._eta, dtype=torch.bool)
        moved = (
            ((best.max_loss_point - self._center).flatten(1).abs() > 1e-6 * self._radius)
            .sum(1)
            .to(self._eta)
        )  # rounding is no move
        sparser = moved / self._moved.clamp(min=1) < 0.95
        self.density = moved / self._d / self._SHRINK
        shorter = (self._eta / self._SHRINK).clamp(min=self._LEAST * self._radius)
        self._eta = torch.where(sparser, self._radius, shorter)
        self._moved = moved
        return sparser
