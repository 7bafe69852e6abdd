"""Gradient ascent from the point where a query search ended."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from saddlepoint.attacks.best import AttackResult
from saddlepoint.attacks.pgd import PGD, From
from saddlepoint.defenses import Defense
from saddlepoint.evaluation.attack_context import AttackContext
from saddlepoint.evaluation.cost import PassCost
from saddlepoint.evaluation.direct import Direct
from saddlepoint.evaluation.escalation import TwoStage
from saddlepoint.evaluation.properties import AdversaryProperties


@dataclass(frozen=True)
class WarmStart(TwoStage):
    """`first`, then `then` from the point of highest loss on rows that `first` did not break.

    Gradients that do not help at the clean image may help there. The steps of PGD start at the
    point of highest loss and become shorter (`From`); `random_start` has no effect. Only for
    deterministic defenses with independent rows. It costs both attacks and one output.
    """

    then: Direct

    def __post_init__(self) -> None:
        if not isinstance(self.then.attack, PGD):
            raise ValueError(
                "WarmStart continues with PGD, which can start at any point, "
                f"got {type(self.then.attack).__name__}."
            )

    @property
    def properties(self) -> AdversaryProperties:
        return replace(super().properties, continues_search=True)

    def cost(self, draws: int = 1) -> PassCost | None:
        first = self.first.cost(draws)
        if first is None:
            return None
        return PassCost.sum([first, self.then.cost()]).plus_forward(draws)

    def move(self, context: AttackContext, defense: Defense, x: Tensor, y: Tensor) -> AttackResult:
        self.require_independent(defense)
        result = self.first.move(context, defense, x, y)
        correct = ~context.simulate(defense, result.point, y).always_misclassified
        rows = correct.nonzero()[:, 0]
        if not len(rows):
            return result
        assert isinstance(self.then.attack, PGD), "checked above"
        start = From(result.max_loss_point[rows], self.then.attack)
        second = replace(self.then, attack=start).move(
            context.restrict(rows), defense.restrict(rows), x[rows], y[rows]
        )
        return result.with_rows(rows, second)
