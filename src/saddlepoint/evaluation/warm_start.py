"""Climb on from where a search without gradients ended."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from saddlepoint.attacks.best import AttackResult
from saddlepoint.attacks.pgd import PGD, From
from saddlepoint.defenses import Defense
from saddlepoint.evaluation.adversaries import AttackContext, Direct
from saddlepoint.evaluation.escalation import TwoStage


@dataclass(frozen=True)
class WarmStart(TwoStage):
    """`first`, and where it took nothing `then` from its highest point: gradients that lead nowhere from the image may do there.

    x_0 = peak of first, then the steps of PGD, ever shorter (`From`); its `random_start` does not matter. Only for a deterministic
    defense with independent rows, as `Standing`. Costs both attacks and one answer.
    """

    then: Direct

    def __post_init__(self) -> None:
        if not isinstance(self.then.attack, PGD):
            raise ValueError(
                f"Onward climbs by PGD, which can start anywhere, got {type(self.then.attack).__name__}."
            )

    def move(self, context: AttackContext, defense: Defense, x: Tensor, y: Tensor) -> AttackResult:
        self.refuse(defense)
        found = self.first.move(context, defense, x, y)
        rows = (~context.simulate(defense, found.point, y).fallen).nonzero()[:, 0]
        if not len(rows):
            return found
        assert isinstance(self.then.attack, PGD), "checked above"
        climb = replace(self.then, attack=From(found.max_loss_point[rows], self.then.attack))
        higher = climb.move(context.restrict(rows), defense.restrict(rows), x[rows], y[rows])
        pairs = ((found.point, higher.point), (found.max_loss_point, higher.max_loss_point))
        return AttackResult(*(old.index_copy(0, rows, new) for old, new in pairs))
