"""An attack of a paper on one defense: its result, its passes and its share of the paper's budget.

A blind audit can only be compared with an attack that had its published budget, or at an equal
number of passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from saddlepoint.evaluation import Adversary, Episode
from saddlepoint.papers.cells import correct_rate


@dataclass(frozen=True)
class PaperAttack:
    """The result and the cost of one attack of a paper on one defense."""

    correct: Tensor  # [N] fraction of correct draws
    forward: float  # passes per image
    backward: float
    share: float  # of the published budget, in (0, 1]; 1: the published budget

    @classmethod
    def of(
        cls, scored: Sequence[Episode], share: float, computed: Episode | None = None
    ) -> PaperAttack:
        """The attack of these episodes.

        Args:
            scored: the episodes in which its points were scored, over which the mean is taken.
            share: its share of the published budget.
            computed: the episode in which its points were computed; default: the scored one.
        """
        cost = scored[0] if computed is None else computed
        return cls(
            correct=torch.stack([correct_rate(episode) for episode in scored]).mean(0),
            forward=float(cost.forward.double().mean()),
            backward=float(cost.backward.double().mean()),
            share=share,
        )

    @property
    def passes(self) -> float:
        """Forward and backward passes per image."""
        return self.forward + self.backward

    @property
    def accuracy(self) -> float:
        """Accuracy in percent."""
        return 100 * float(self.correct.mean())

    @property
    def has_published_budget(self) -> bool:
        """Whether it ran with the published budget."""
        return self.share >= 1


def budget_share(used: float, published: float) -> float:
    """The share of a published budget that was used, at most 1."""
    return min(1.0, used / published)


def cost_share(used: Adversary, published: Adversary, draws: int = 1) -> float:
    """The most passes of an adversary relative to those of the published one, at most 1.

    Args:
        used: the adversary that was run.
        published: the same adversary with its published budget.
        draws: draws over which a randomized defense is evaluated.
    """
    costs = (used.cost(draws), published.cost(draws))
    assert costs[0] is not None
    assert costs[1] is not None
    return budget_share(costs[0].total, costs[1].total)
