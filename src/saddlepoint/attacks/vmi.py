"""Variance-tuned momentum: gradients corrected by those of the neighborhood, for points that carry over to other models."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from saddlepoint.attacks.base import Attack
from saddlepoint.attacks.best import AttackResult, BestSoFar
from saddlepoint.attacks.oracle import Differentiates
from saddlepoint.attacks.pgd import normalized
from saddlepoint.attacks.spaces import Ball, Radii
from saddlepoint.defenses import Access
from saddlepoint.rng import Keys


@dataclass(frozen=True)
class VMI(Attack[Differentiates]):
    """VMI-FGSM of Wang & He 2021 (Algorithm 1), in any norm: x <- project(x + step ascent(g)) from the center, where

    g <- momentum g + (grad f(x) + v) / ||grad f(x) + v||_1   and then   v <- mean_i grad f(x + r_i) - grad f(x),

    with r_i uniform in a ball of `neighborhood` times the radius. Costs `steps` + (`steps` - 1) `samples` slopes and one reading.
    Neighbors are clipped into the box, which the released code does not do: a defense need not answer for anything outside. The
    best visited point is kept, not the last; neighbors are no proposals.
    """

    steps: int = 10
    step_size: float | Radii | None = None  # in units of the input; None: radius / steps
    momentum: float = 1.0
    samples: int = 20
    neighborhood: float = 1.5  # in radii: beta of the paper
    needs: ClassVar[Access] = "gradient"

    def __post_init__(self) -> None:
        if self.steps < 1 or self.samples < 0:
            raise ValueError(
                f"VMI needs at least one step and no less than 0 samples, got {self.steps} and {self.samples}."
            )

    @property
    def calls(self) -> int:
        return self.steps + (self.steps - 1) * self.samples + 1

    def scaled(self, factor: int) -> VMI:
        return replace(self, steps=factor * self.steps)

    def __call__(
        self, oracle: Differentiates, center: Tensor, space: Ball, keys: Keys
    ) -> AttackResult:
        step = space.radius / self.steps if self.step_size is None else space.length(self.step_size)
        x = center
        best = BestSoFar(center, oracle.coupled)
        velocity = variance = torch.zeros_like(center)
        for k in range(self.steps):
            evaluation, grad = oracle.gradient(x)
            best.update(x, evaluation)
            velocity = self.momentum * velocity + normalized(grad + variance)
            if self.samples and k + 1 < self.steps:
                variance = self._around(oracle, x, space, keys.fold_in(k)) - grad
            x = space.project(x + step * space.ascent(velocity, x), center)
        best.update(x, oracle.score(x))
        return best.result

    def _around(self, oracle: Differentiates, x: Tensor, space: Ball, keys: Keys) -> Tensor:
        """The mean gradient of the neighborhood."""
        near = replace(space, radius=self.neighborhood * space.radius)
        total = torch.zeros_like(x)
        for i in range(self.samples):
            total = total + oracle.gradient(near.sample(x, keys.fold_in(i))).grad
        return total / self.samples
