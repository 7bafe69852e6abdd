"""The attack of Carlini and Wagner: minimum L2 norm by a penalty and a change of variables."""

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
    """The L2 attack of Carlini & Wagner 2017, Sec. V-VI:

        min_w ||x - c||_2^2 + k max(confidence - value, 0),
        x = low + (high - low)(tanh w + 1) / 2.

    Adam minimizes over w for `steps` steps, in each of `rounds` rounds. The constant k of an
    example changes after each round. After a success it goes half way towards the largest k that
    failed. After a failure it grows tenfold, or goes half way to the smallest k that succeeded. The
    value must be a margin.

    It costs `rounds * steps` gradients, and at most `search` + 1 evaluations. The paper uses 10000
    steps and ends a round when the loss stops improving. Here every step is made, so that the
    result of a row does not depend on its batch, and a bisection follows at the end.

    Args:
        steps: steps of Adam per round, at least 1; default 1000. A pixel on the edge of the box
            starts at |w| = 7, so steps * learning_rate must exceed 7 for it to move.
        rounds: rounds, each with another constant k; default 9.
        constant: the first k; default 1e-3.
        learning_rate: of Adam, in units of w; default 0.01.
        confidence: the margin that counts as success, in units of logits; default 0.
        search: bisections at the end, at least 0; default 10. None are made if `confidence` is set.
    """

    steps: int = 1000
    rounds: int = 9
    constant: float = 1e-3
    learning_rate: float = 0.01
    confidence: float = 0.0
    search: int = 10
    needs: ClassVar[Access] = "gradient"
    minimum_norm: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.steps < 1 or self.rounds < 1 or self.search < 0:
            raise ValueError(
                "CW needs steps >= 1, rounds >= 1 and search >= 0, "
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
                f"CW minimizes the L2 norm, got a set with p={space.p}. "
                "Use FMN or FAB, or an L2 set."
            )
        nearest = MinNormTracker(center, space, keys, oracle.coupled)
        constant = center.new_full((len(center),), self.constant)
        failed = torch.zeros_like(constant)
        succeeded = torch.full_like(constant, torch.inf)
        for _ in range(self.rounds):
            success = self._descend(oracle, center, space, constant, nearest)
            failed = torch.where(success, failed, constant)
            succeeded = torch.where(success, constant, succeeded)
            constant = torch.where(succeeded.isinf(), 10 * constant, (failed + succeeded) / 2)
        if not self.confidence:  # a bisection would end where the margin is zero
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
        """Run one round. Returns [N] bool: rows where some step succeeded."""
        low, high = space.box
        # Without the factor, pixels on the edge of the box would start at infinity and not move.
        w = ((2 * (center - low) / (high - low) - 1) * (1 - 1e-6)).atanh()
        mean = square = torch.zeros_like(w)
        any_success = torch.zeros(len(center), dtype=torch.bool, device=center.device)
        for k in range(1, self.steps + 1):
            free = low + (high - low) * (w.tanh() + 1) / 2
            x = nearest.legal(free)
            (value, success), grad = oracle.gradient(x)
            success = success & (value >= self.confidence) if self.confidence else success
            nearest.update(x, Evaluation(value, success))
            any_success = any_success | success
            penalty = per_example(torch.where(value < self.confidence, constant, 0.0), x)
            grad_x = 2 * (x - center) - penalty * grad
            grad_w = grad_x * 2 * (free - low) * (high - free) / (high - low)  # times dx/dw
            mean = 0.9 * mean + 0.1 * grad_w
            square = 0.999 * square + 0.001 * grad_w.square()
            w = w - self.learning_rate * (mean / (1 - 0.9**k)) / (
                (square / (1 - 0.999**k)).sqrt() + 1e-8
            )
        return any_success
