"""LAFEAT: gradients of an early exit help to attack the last one (Yu, Gao & Xu 2021).

The optimizer and the aim of the attack.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import ClassVar

from torch import Tensor

from saddlepoint.attacks.apgd import ascend
from saddlepoint.attacks.base import Attack
from saddlepoint.attacks.best import AttackResult, BestSoFar
from saddlepoint.attacks.losses import Loss, misclassified
from saddlepoint.attacks.oracle import Differentiates
from saddlepoint.attacks.spaces import Ball
from saddlepoint.defenses import Access
from saddlepoint.rng import Keys


@dataclass(frozen=True)
class CosineAscent(Attack[Differentiates]):
    """The heavy-ball iteration of APGD from the clean image with cosine step sizes:

        eta_i = 2 radius (1 + cos(pi i / steps)) / 2,   i = 0, ..., steps - 1.

    It costs `steps` gradients and one evaluation. The result is the best visited point, not the
    last misclassified one.

    Args:
        steps: number of steps, at least 1; default 100.
        momentum: weight of the current step against the previous one; default 0.75.
    """

    steps: int = 100
    momentum: float = 0.75
    needs: ClassVar[Access] = "gradient"

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"CosineAscent needs at least one step, got steps={self.steps}.")

    @property
    def calls(self) -> int:
        return self.steps + 1

    def scaled(self, factor: int) -> CosineAscent:
        return replace(self, steps=factor * self.steps)

    def __call__(
        self,
        oracle: Differentiates,
        center: Tensor,
        space: Ball,
        keys: Keys,  # noqa: ARG002
    ) -> AttackResult:
        schedule = _CosineSteps(space.radius, self.steps)
        return ascend(oracle, center, space, center, self.calls, schedule, self.momentum).result


class _CosineSteps:
    """Cosine step sizes; rows never go back to an earlier point."""

    density: Tensor | None = None

    def __init__(self, radius: float, steps: int) -> None:
        self._radius = radius
        self._steps = steps
        self._taken = 0

    def step(self, x: Tensor) -> Tensor:
        return x.new_tensor(self._radius * (1 + math.cos(math.pi * self._taken / self._steps)))

    def update(self, k: int, increased: Tensor, best: BestSoFar) -> None:  # noqa: ARG002
        self._taken = k


@dataclass(frozen=True)
class Latent:
    """The aim of LAFEAT: the loss of the last view, with the gradient of a mix of two views.

    The gradient is that of loss(b z_first / gap_first + (1 - b) z_last / gap_last). b is `beta` on
    rows that the first view classifies correctly and 0 elsewhere. gap is the difference of the two
    largest logits and is treated as a constant. The value is that of the last view alone, because
    the mixed loss is unbounded where two classes tie.

    Args:
        beta: weight of the first view, between 0 and 1.

    Raises:
        ValueError: `beta` is out of range.
    """

    beta: float

    def __post_init__(self) -> None:
        if not 0 <= self.beta <= 1:
            raise ValueError(
                f"beta is the weight of the latent view, between 0 and 1, got {self.beta}."
            )

    def __call__(self, loss: Loss, logits: Tensor, y: Tensor) -> Tensor:
        latent = logits[0]
        final = logits[-1]
        weight = self.beta * (~misclassified(latent.detach(), y)).to(latent)[:, None]
        mixed = loss(weight * _scaled(latent) + (1 - weight) * _scaled(final), y)
        return loss(final, y).detach() + (mixed - mixed.detach())


def outwards(betas: Sequence[float]) -> tuple[float, ...]:
    """Order values from the middle to both ends, the lower side first: 0 1 2 3 -> 1 2 0 3."""
    middle = len(betas) // 2
    pairs = zip_longest(reversed(betas[:middle]), betas[middle:])
    return tuple(beta for pair in pairs for beta in pair if beta is not None)


def _scaled(logits: Tensor) -> Tensor:
    """Logits divided by the difference of the two largest, so that exits can be added."""
    top = logits.detach().topk(2, dim=-1).values
    return logits / (top[..., :1] - top[..., 1:]).clamp(min=1e-12)
