"""Go on where it nearly worked: a long attack for the few rows that a short one brought close to the edge."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from saddlepoint.attacks.best import AttackResult
from saddlepoint.attacks.spaces import per_example
from saddlepoint.defenses import Access, Defense
from saddlepoint.evaluation.adversaries import Adversary, AttackContext, Cascade


@dataclass(frozen=True)
class TwoStage:
    """Two attacks, the second for some rows of the first; sent under the name of the first."""

    first: Adversary
    then: Adversary

    @property
    def name(self) -> str:
        return self.first.name

    @property
    def needs(self) -> Access:
        return Cascade(self.name, (self.first, self.then)).needs

    def refuse(self, defense: Defense) -> None:
        """Where coins are tossed or rows answer together, no row can be told apart from the others."""
        if defense.random or defense.unit != "example":
            kind = type(self).__name__
            raise ValueError(
                f"{kind} needs a deterministic defense with independent rows; send its first adversary alone."
            )


@dataclass(frozen=True)
class Escalate(TwoStage):
    """`first` on all rows, then `then` on those that still stand and whose lead fell to at most `within` of what it was.

    The lead of the right class is minus the margin: lead(x) = z_y - max_{j != y} z_j; a row is pursued if
    0 <= lead(x~) <= within lead(x), whatever its neighbors do. Pursuits nest: `then` may be one. Only for a deterministic
    defense with independent rows, as `Standing`. Costs both attacks and three answers.
    """

    within: float  # of the clean lead

    def __post_init__(self) -> None:
        if not 0 < self.within <= 1:
            raise ValueError(
                f"a pursuit goes on within a share of the clean lead in (0, 1], got within={self.within}."
            )

    def move(self, context: AttackContext, defense: Defense, x: Tensor, y: Tensor) -> AttackResult:
        self.refuse(defense)
        clean = context.simulate(defense, x, y).evaluation.value
        found = self.first.move(context, defense, x, y)
        held, fallen = context.simulate(defense, found.point, y)[:2]
        rows = (~fallen & (held.value >= self.within * clean)).nonzero()[:, 0]
        if not len(rows):
            return found
        # Other coins: the second attack is also another start.
        sub_context = context.again(1).restrict(rows)
        there = defense.restrict(rows)
        chased = self.then.move(sub_context, there, x[rows], y[rows])
        closer = per_example(
            sub_context.simulate(there, chased.point, y[rows]).evaluation.value > held.value[rows],
            x,
        )
        better = (
            torch.where(closer, new, old[rows])
            for new, old in (
                (chased.point, found.point),
                (chased.max_loss_point, found.max_loss_point),
            )
        )
        return AttackResult(
            *(
                old.index_copy(0, rows, new)
                for old, new in zip((found.point, found.max_loss_point), better, strict=True)
            )
        )
