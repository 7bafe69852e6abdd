"""FMN: gradient steps in a ball that shrinks after each success and grows after each failure."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from saddlepoint.attacks.base import Attack
from saddlepoint.attacks.best import AttackResult
from saddlepoint.attacks.hyperplane import distance
from saddlepoint.attacks.min_norm import MinNormTracker
from saddlepoint.attacks.oracle import Differentiates
from saddlepoint.attacks.spaces import Ball, per_example
from saddlepoint.defenses import Access
from saddlepoint.rng import Keys


@dataclass(frozen=True)
class FMN(Attack[Differentiates]):
    """Fast minimum norm, Pintor et al. 2021, Alg. 1, with one radius r per example:

        x <- project_r(x + step g / ||g||_2).

    After a success r <- min((1 - gamma) r, shortest success). After a failure r <- (1 + gamma) r,
    or before the first success the distance to the linearized boundary,
    |x - c| + |value| / ||g||_q. Step and gamma are annealed by a half cosine. The value must be a
    margin, zero on the boundary.

    It costs `steps` gradients and `search` + 2 evaluations. There are two differences to the paper:
    the projection is onto ball and box at once, and a bisection follows at the end, because the
    radius is resolved no finer than `gamma_final`.

    Args:
        steps: number of steps, at least 1; default 100.
        step: first step size, Euclidean, in units of the input; default 1. The last one is a
            hundredth of it.
        gamma: first relative change of the radius; default 0.05.
        gamma_final: last relative change of the radius; default 0.001.
        search: bisections at the end, at least 0; default 10.
    """

    steps: int = 100
    step: float = 1.0
    gamma: float = 0.05
    gamma_final: float = 0.001
    search: int = 10
    needs: ClassVar[Access] = "gradient"
    minimum_norm: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.steps < 1 or self.search < 0:
            raise ValueError(
                "FMN needs steps >= 1 and search >= 0, "
                f"got steps={self.steps}, search={self.search}."
            )

    @property
    def calls(self) -> int:
        return self.steps + self.search + 2

    def scaled(self, factor: int) -> FMN:
        return replace(self, steps=factor * self.steps)

    def __call__(
        self, oracle: Differentiates, center: Tensor, space: Ball, keys: Keys
    ) -> AttackResult:
        nearest = MinNormTracker(center, space, keys, oracle.coupled)
        x = center
        radius = shortest = center.new_full((len(center),), torch.inf)
        for k in range(self.steps):
            evaluation, grad = oracle.gradient(x)
            value, success = evaluation
            size = nearest.update(x, evaluation)
            gamma = self._anneal(k, self.gamma, self.gamma_final)
            step = self._anneal(k, self.step, self.step / 100)
            shortest = torch.where(success, size.minimum(shortest), shortest)
            wider = torch.where(
                shortest.isfinite(), (1 + gamma) * radius, size + distance(value, grad, space)
            )
            radius = torch.where(success, ((1 - gamma) * radius).minimum(shortest), wider)
            direction = grad / per_example(grad.flatten(1).norm(dim=1).clamp(min=1e-12), x)
            x = nearest.legal(space.project(x + step * direction, center, radius))
        nearest.update(x, oracle.score(x))
        nearest.search(oracle, self.search)
        return nearest.result(oracle)

    def _anneal(self, k: int, first: float, last: float) -> float:
        return last + (first - last) * (1 + math.cos(math.pi * k / self.steps)) / 2
