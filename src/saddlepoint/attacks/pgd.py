"""Projected gradient ascent: PGD, PGD from given points, FGSM."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from saddlepoint.attacks.base import Attack
from saddlepoint.attacks.best import AttackResult, BestSoFar
from saddlepoint.attacks.oracle import Differentiates
from saddlepoint.attacks.spaces import Ball, Radii, per_example
from saddlepoint.defenses import Access
from saddlepoint.describe import OMIT_DEFAULT
from saddlepoint.rng import Keys


@dataclass(frozen=True)
class PGD(Attack[Differentiates]):
    """Projected gradient descent (PGD), Madry et al. 2018:

        x <- project(x + step_size ascent(g)),

    where g is the gradient or, with momentum (Dong et al. 2018),
    g <- momentum g + grad / ||grad||_1. It costs `steps` gradients and one evaluation. The result
    is the best visited point, not the last one.

    Args:
        steps: number of steps, at least 1; default 40.
        step_size: in units of the input, such as 2/255 for pixels in [0, 1], or `Radii`; default
            None, 2.5 radius / steps.
        random_start: start at a uniform random point of the set (default) instead of the center.
        momentum: weight of the previous gradients; default 0, none.
        decreasing: step k has the length step_size (1 - k / steps), k = 0, 1, ..., so that the last
            steps are short; default False, equal steps.
    """

    steps: int = 40
    step_size: float | Radii | None = None
    random_start: bool = True
    momentum: float = 0.0
    decreasing: bool = field(default=False, metadata=OMIT_DEFAULT)
    needs: ClassVar[Access] = "gradient"

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"PGD needs at least one step, got steps={self.steps}.")

    @property
    def calls(self) -> int:
        return self.steps + 1

    def scaled(self, factor: int) -> PGD:
        return replace(self, steps=factor * self.steps)

    def stays_inside(self, space: Ball) -> bool:  # noqa: ARG002
        return True

    def __call__(
        self, oracle: Differentiates, center: Tensor, space: Ball, keys: Keys
    ) -> AttackResult:
        start = space.sample(center, keys) if self.random_start else center
        return self.ascend(oracle, center, space, start, self.lengths(space))

    def lengths(self, space: Ball) -> list[float]:
        """The length of each step in units of the input."""
        first = self.step_length(space)
        if not self.decreasing:
            return [first] * self.steps
        return [first * (1 - k / self.steps) for k in range(self.steps)]

    def step_length(self, space: Ball) -> float:
        """The size of the first step in units of the input."""
        if self.step_size is None:
            return 2.5 * space.radius / self.steps
        return space.length(self.step_size)

    def ascend(
        self,
        oracle: Differentiates,
        center: Tensor,
        space: Ball,
        start: Tensor,
        lengths: Sequence[float],
    ) -> AttackResult:
        """Run the iteration from given points.

        Args:
            oracle: evaluates points and counts passes.
            center: clean inputs, [N, ...].
            space: the perturbation set.
            start: starting points in the set, [N, ...].
            lengths: the length of each step, in units of the input.
        """
        x = start
        region = space.around(center)
        best = BestSoFar(center, oracle.coupled)
        velocity = torch.zeros_like(center)
        for step in lengths:
            evaluation, grad = oracle.gradient(x)
            best.update(x, evaluation)
            if self.momentum:
                velocity = self.momentum * velocity + normalized(grad)
                grad = velocity
            x = region.project(x.add(space.ascent(grad, x), alpha=step))
        best.update(x, oracle.score(x))
        return best.result


@dataclass(frozen=True)
class From(Attack[Differentiates]):
    """PGD from given points with decreasing steps:

        x <- project(x + step_size (1 - k / steps) ascent(g)),   k = 0, 1, ..., steps - 1.

    The last steps are short, so that they do not skip a misclassified region near the start. The
    starting points compete with all visited points for the result.

    Args:
        start: starting points in the set, [N, ...].
        pgd: number of steps, first step size and momentum. Its `random_start` and
            `decreasing` are not used.
    """

    start: Tensor
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
        pgd = replace(self.pgd, decreasing=True)
        return pgd.ascend(oracle, center, space, self.start, pgd.lengths(space))


def FGSM() -> PGD:  # noqa: N802
    """FGSM in any norm: one step from the clean image to the edge of the set.

    Goodfellow et al. 2015.
    """
    return PGD(steps=1, random_start=False)


def normalized(grad: Tensor) -> Tensor:
    """The gradient, [N, ...], divided by its mean absolute value per example.

    Momentum then adds gradients of equal scale (Dong et al. 2018, Eq. 6).
    """
    return grad / per_example(
        grad.flatten(1).abs().mean(1).clamp(min=torch.finfo(grad.dtype).tiny), grad
    )
