"""Projected gradient ascent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from saddlepoint.attacks.base import Attack
from saddlepoint.attacks.best import AttackResult, BestSoFar
from saddlepoint.attacks.oracle import Differentiates
from saddlepoint.attacks.spaces import Ball, Radii, per_example
from saddlepoint.defenses import Access
from saddlepoint.rng import Keys


@dataclass(frozen=True)
class PGD(Attack[Differentiates]):
    """x <- project(x + step ascent(g)), Madry et al. 2018; with momentum g <- momentum g + grad / ||grad||_1, Dong et al. 2018.

    Costs `steps` slopes and one reading. The best visited point is kept, not the last.
    """

    steps: int = 40
    step_size: float | Radii | None = (
        None  # in units of the input, 2/255 for pixels in [0, 1]; None: 2.5 radius / steps
    )
    random_start: bool = True
    momentum: float = 0.0
    needs: ClassVar[Access] = "gradient"

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"PGD needs at least one step, got steps={self.steps}.")

    @property
    def calls(self) -> int:
        return self.steps + 1

    def scaled(self, factor: int) -> PGD:
        return replace(self, steps=factor * self.steps)

    def __call__(
        self, oracle: Differentiates, center: Tensor, space: Ball, keys: Keys
    ) -> AttackResult:
        start = space.sample(center, keys) if self.random_start else center
        return self.climb(oracle, center, space, start, [self.step(space)] * self.steps)

    def step(self, space: Ball) -> float:
        return (
            2.5 * space.radius / self.steps
            if self.step_size is None
            else space.length(self.step_size)
        )

    def climb(
        self,
        oracle: Differentiates,
        center: Tensor,
        space: Ball,
        start: Tensor,
        lengths: Sequence[float],
    ) -> AttackResult:
        """From the given points of the set around `center`, by steps of the given lengths."""
        x = start
        best = BestSoFar(center, oracle.coupled)
        velocity = torch.zeros_like(center)
        for step in lengths:
            evaluation, grad = oracle.gradient(x)
            best.update(x, evaluation)
            if self.momentum:
                velocity = self.momentum * velocity + normalized(grad)
                grad = velocity
            x = space.project(x + step * space.ascent(grad, x), center)
        best.update(x, oracle.score(x))
        return best.result


@dataclass(frozen=True)
class From(Attack[Differentiates]):
    """PGD from given points, with ever shorter steps: x <- project(x + step (1 - k / steps) ascent(g)), k = 0, 1, ...

    What is near enough to be found from there is not jumped over at the end; the points themselves compete with all that it visits.
    """

    start: Tensor  # [N, ...]
    pgd: PGD
    needs: ClassVar[Access] = "gradient"

    @property
    def calls(self) -> int:
        return self.pgd.calls

    def scaled(self, factor: int) -> From:
        return replace(self, pgd=self.pgd.scaled(factor))

    def __call__(
        self,
        oracle: Differentiates,
        center: Tensor,
        space: Ball,
        keys: Keys,  # noqa: ARG002
    ) -> AttackResult:
        lengths = [self.pgd.step(space) * (1 - k / self.pgd.steps) for k in range(self.pgd.steps)]
        return self.pgd.climb(oracle, center, space, self.start, lengths)


def FGSM() -> PGD:  # noqa: N802
    """One step from the image itself to the edge of the set, Goodfellow et al. 2015; in any norm."""
    return PGD(steps=1, random_start=False)


def normalized(grad: Tensor) -> Tensor:
    """The gradient divided by its mean absolute value, so that steps of different scale add up (Dong et al. 2018, Eq. 6)."""
    return grad / per_example(
        grad.flatten(1).abs().mean(1).clamp(min=torch.finfo(grad.dtype).tiny), grad
    )
