"""Variance-tuned momentum, for perturbations that transfer to other models."""

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
    """VMI-FGSM of Wang & He 2021 (Algorithm 1), in any norm. From the center,

        g <- momentum g + (grad f(x) + v) / ||grad f(x) + v||_1,
        v <- mean_i grad f(x + r_i) - grad f(x),
        x <- project(x + step_size ascent(g)),

    with r_i uniform in a ball of `neighborhood` times the radius. It costs
    `steps` + (`steps` - 1) `samples` gradients and one evaluation. Neighbors are clipped into the
    box, which the released code does not do, because a defense need not accept inputs outside of
    it. The result is the best visited x, not the last one; neighbors are not proposed.

    Args:
        steps: number of steps, at least 1; default 10.
        step_size: in units of the input, or `Radii`; default None, radius / steps.
        momentum: weight of the previous gradients; default 1.
        samples: neighbors per step, at least 0; default 20.
        neighborhood: radius of the neighborhood in radii of the set, beta of the paper; default
            1.5.
    """

    steps: int = 10
    step_size: float | Radii | None = None
    momentum: float = 1.0
    samples: int = 20
    neighborhood: float = 1.5
    needs: ClassVar[Access] = "gradient"

    def __post_init__(self) -> None:
        if self.steps < 1 or self.samples < 0:
            raise ValueError(
                "VMI needs steps >= 1 and samples >= 0, "
                f"got steps={self.steps} and samples={self.samples}."
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
        region = space.around(center)
        best = BestSoFar(center, oracle.coupled)
        velocity = variance = torch.zeros_like(center)
        for k in range(self.steps):
            evaluation, grad = oracle.gradient(x)
            best.update(x, evaluation)
            velocity = self.momentum * velocity + normalized(grad + variance)
            if self.samples and k + 1 < self.steps:
                variance = self._mean_gradient(oracle, x, space, keys.fold_in(k)) - grad
            x = region.project(x.add(space.ascent(velocity, x), alpha=step))
        best.update(x, oracle.score(x))
        return best.result

    def _mean_gradient(self, oracle: Differentiates, x: Tensor, space: Ball, keys: Keys) -> Tensor:
        """The mean gradient of the neighborhood, [N, ...]."""
        near = replace(space, radius=self.neighborhood * space.radius)
        total = torch.zeros_like(x)
        for i in range(self.samples):
            total = total + oracle.gradient(near.sample(x, keys.fold_in(i))).grad
        return total / self.samples
