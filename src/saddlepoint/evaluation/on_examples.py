"""An adversary that is sent to some examples only."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from saddlepoint.attacks.best import AttackResult
from saddlepoint.defenses import Access, Defense
from saddlepoint.evaluation.adversaries import Adversary, AttackContext


@dataclass(frozen=True)
class OnExamples:
    """The adversary sent to the examples whose ids are given; elsewhere the clean image is proposed, and nothing is spent.

    Rows that answer together are attacked together: a batch that holds one of the examples is attacked as a whole.
    """

    name: str
    adversary: Adversary
    ids: tuple[int, ...]

    @property
    def needs(self) -> Access:
        return self.adversary.needs

    def move(self, context: AttackContext, defense: Defense, x: Tensor, y: Tensor) -> AttackResult:
        meant = torch.isin(context.ids, torch.tensor(self.ids, device=context.ids.device))
        if not meant.any():
            return AttackResult(x, x)
        if defense.unit != "example" or meant.all():
            return self.adversary.move(context, defense, x, y)
        rows = meant.nonzero()[:, 0]
        found = self.adversary.move(
            context.restrict(rows), defense.restrict(rows), x[rows], y[rows]
        )
        return AttackResult(
            x.index_copy(0, rows, found.point), x.index_copy(0, rows, found.max_loss_point)
        )
