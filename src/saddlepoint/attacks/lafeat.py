"""LAFEAT: an early exit shows the way to where the last one errs (Yu, Gao & Xu 2021). Its optimizer, and what it aims at."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import ClassVar

import torch
from torch import Tensor

from saddlepoint.attacks.apgd import ascend
from saddlepoint.attacks.base import Attack
from saddlepoint.attacks.best import AttackResult, BestSoFar
from saddlepoint.attacks.losses import Loss, fooled
from saddlepoint.attacks.oracle import Differentiates
from saddlepoint.attacks.spaces import Ball
from saddlepoint.defenses import Access
from saddlepoint.rng import Keys


@dataclass(frozen=True)
class CosineAscent(Attack[Differentiates]):
    """APGD's heavy ball from the image itself, with steps eta_i = 2 radius (1 + cos(pi i / steps)) / 2, i = 0 ... steps - 1.

    Costs `steps` slopes and one reading. The best visited point is kept, not the last that fooled.
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
        pace = _Cosine(space.radius, self.steps)
        return ascend(oracle, center, space, center, self.calls, pace, self.momentum).result


class _Cosine:
    """Never goes back; the number of looks is the number of steps taken."""

    density: Tensor | None = None

    def __init__(self, radius: float, steps: int) -> None:
        self._radius = radius
        self._steps = steps
        self._taken = 0

    def step(self, x: Tensor) -> Tensor:
        return x.new_tensor(self._radius * (1 + math.cos(math.pi * self._taken / self._steps)))

    def look(self, k: int, rose: Tensor, best: BestSoFar) -> Tensor:  # noqa: ARG002
        self._taken = k
        return torch.zeros_like(rose)


@dataclass(frozen=True)
class Latent:
    """The loss of the last view, climbed along the gradient of loss(b z_first / gap_first + (1 - b) z_last / gap_last),

    where b is `beta` on rows that the first view answers rightly and 0 elsewhere, and gap, held fixed, is how far the strongest
    class is ahead of the next. The value is that of the last view alone: the mixed one has no bound where two classes tie.
    """

    beta: float

    def __post_init__(self) -> None:
        if not 0 <= self.beta <= 1:
            raise ValueError(
                f"beta is the share of the latent view, between 0 and 1, got {self.beta}."
            )

    def __call__(self, loss: Loss, logits: Tensor, y: Tensor) -> Tensor:
        latent = logits[0]
        final = logits[-1]
        share = self.beta * (~fooled(latent.detach(), y)).to(latent)[:, None]
        climbed = loss(share * _spread(latent) + (1 - share) * _spread(final), y)
        return loss(final, y).detach() + (climbed - climbed.detach())


def outwards(betas: Sequence[float]) -> tuple[float, ...]:
    """From the middle to both ends, the lower side first: 0 1 2 3 -> 1 2 0 3."""
    middle = len(betas) // 2
    pairs = zip_longest(reversed(betas[:middle]), betas[middle:])
    return tuple(beta for pair in pairs for beta in pair if beta is not None)


def _spread(logits: Tensor) -> Tensor:
    """Logits in units of how far the strongest is ahead of the next: exits of different scale can be added."""
    top = logits.detach().topk(2, dim=-1).values
    return logits / (top[..., :1] - top[..., 1:]).clamp(min=1e-12)
