"""The attack of Carlini and Wagner: shortest Euclidean perturbation by penalty and change of variables."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from saddlepoint.attacks.base import Attack
from saddlepoint.attacks.best import AttackResult
from saddlepoint.attacks.min_norm import MinNormTracker
from saddlepoint.attacks.oracle import Differentiates
from saddlepoint.attacks.spaces import Ball, per_example
from saddlepoint.defenses import Access
from saddlepoint.gradients import Evaluation
from saddlepoint.rng import Keys


@dataclass(frozen=True)
class CW(Attack[Differentiates]):
    """min_w ||x - c||_2^2 + k max(confidence - value, 0), x = low + (high - low)(tanh w + 1) / 2; Carlini & Wagner 2017, Sec. V-VI.

    Adam on w for `steps` steps, `rounds` times over: after a round that succeeded the constant k of that example is halved towards
    the largest that failed, after one that failed it grows tenfold or goes half way to the smallest that succeeded. The value must
    be a margin. Costs `rounds * steps` slopes, and `search` readings and one at most. The paper takes 10000 steps and stops a round
    whose loss stands still; we take every step, so that a row's result does not depend on its batch, and bisect at the end.
    """

    steps: int = 1000  # a pixel on the edge of the box starts at |w| = 7: steps * learning_rate must exceed that, or it cannot move
    rounds: int = 9
    constant: float = 1e-3  # the first k
    learning_rate: float = 0.01
    confidence: float = 0.0  # the margin that counts as success
    search: int = 10  # bisections at the end
    needs: ClassVar[Access] = "gradient"
    minimum_norm: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.steps < 1 or self.rounds < 1 or self.search < 0:
            raise ValueError(
                "CW needs at least one step, one round and no negative search, "
                f"got steps={self.steps}, rounds={self.rounds}, search={self.search}."
            )

    @property
    def calls(self) -> int:
        return self.rounds * self.steps + self.search + 1

    def scaled(self, factor: int) -> CW:
        return replace(self, steps=factor * self.steps)

    def __call__(
        self, oracle: Differentiates, center: Tensor, space: Ball, keys: Keys
    ) -> AttackResult:
        if space.p != 2:
            raise ValueError(
                f"CW minimizes the Euclidean norm, got a set with p={space.p}. Use FMN or FAB, or an L2 set."
            )
        nearest = MinNormTracker(center, space, keys, oracle.coupled)
        constant = center.new_full((len(center),), self.constant)
        failed = torch.zeros_like(constant)
        worked = torch.full_like(constant, torch.inf)
        for _ in range(self.rounds):
            success = self._descend(oracle, center, space, constant, nearest)
            failed = torch.where(success, failed, constant)
            worked = torch.where(success, constant, worked)
            constant = torch.where(worked.isinf(), 10 * constant, (failed + worked) / 2)
        if not self.confidence:  # a bisection ends where the margin is zero
            nearest.search(oracle, self.search)
        return nearest.result(oracle)

    def _descend(
        self,
        oracle: Differentiates,
        center: Tensor,
        space: Ball,
        constant: Tensor,
        nearest: MinNormTracker,
    ) -> Tensor:
        """[N] bool: did any step of this round succeed?"""
        low, high = space.box
        # Pixels on the edge of the box would start, and stay, at infinity.
        w = ((2 * (center - low) / (high - low) - 1) * (1 - 1e-6)).atanh()
        mean = square = torch.zeros_like(w)
        ever = torch.zeros(len(center), dtype=torch.bool, device=center.device)
        for k in range(1, self.steps + 1):
            free = low + (high - low) * (w.tanh() + 1) / 2
            x = nearest.legal(free)
            (value, success), grad = oracle.gradient(x)
            success = success & (value >= self.confidence) if self.confidence else success
            nearest.update(x, Evaluation(value, success))
            ever = ever | success
            penalty = per_example(torch.where(value < self.confidence, constant, 0.0), x)
            slope = (
                (2 * (x - center) - penalty * grad)
                * 2
                * (free - low)
                * (high - free)
                / (high - low)
            )  # dx/dw at the end
            mean = 0.9 * mean + 0.1 * slope
            square = 0.999 * square + 0.001 * slope.square()
            w = w - self.learning_rate * (mean / (1 - 0.9**k)) / (
                (square / (1 - 0.999**k)).sqrt() + 1e-8
            )
        return ever
