"""An adversary that attacks some examples only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from saddlepoint.attacks.best import AttackResult
from saddlepoint.defenses import Access, Defense
from saddlepoint.evaluation.adversary import Adversary
from saddlepoint.evaluation.attack_context import AttackContext
from saddlepoint.evaluation.cost import PassCost
from saddlepoint.evaluation.direct import Direct


@dataclass(frozen=True)
class OnExamples(Adversary):
    """The adversary on the examples with the given ids.

    The clean image is proposed for all other examples, at no cost. Coupled rows are attacked
    together: a batch that contains one of the examples is attacked as a whole.
    """

    name: str
    adversary: Adversary
    ids: tuple[int, ...]

    @property
    def needs(self) -> Access:
        return self.adversary.needs

    def children(self) -> Sequence[Adversary]:
        return (self.adversary,)

    def cost(self, draws: int = 1) -> PassCost | None:
        return self.adversary.cost(draws)

    def first_stage_cost(self, draws: int = 1) -> PassCost | None:
        return self.adversary.first_stage_cost(draws)

    def single_run(self) -> Adversary | None:
        return self.adversary.single_run()

    def map_direct(self, change: Callable[[Direct], Direct]) -> Adversary:
        return replace(self, adversary=self.adversary.map_direct(change))

    def move(self, context: AttackContext, defense: Defense, x: Tensor, y: Tensor) -> AttackResult:
        ids = torch.tensor(self.ids, device=context.ids.device)
        selected = torch.isin(context.ids, ids)
        if not selected.any():
            return AttackResult(x, x)
        if defense.unit != "example" or selected.all():
            return self.adversary.move(context, defense, x, y)
        rows = selected.nonzero()[:, 0]
        result = self.adversary.move(
            context.restrict(rows), defense.restrict(rows), x[rows], y[rows]
        )
        return AttackResult(x, x).with_rows(rows, result)
