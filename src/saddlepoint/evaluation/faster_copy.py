"""Attacks on a faster copy of a defense, confirmed on the defense itself."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from saddlepoint.attacks.best import AttackResult
from saddlepoint.defenses import Defense, DefenseWrapper
from saddlepoint.evaluation.adversary import AdversaryWrapper
from saddlepoint.evaluation.attack_context import AttackContext


@dataclass(frozen=True)
class FasterCopy:
    """A deterministic defense with independent rows, and a copy with cheaper passes."""

    given: Defense
    copy: Defense

    def in_place(self, defense: Defense) -> Defense:
        """The defense, or the wrappers around it, with the copy in its place."""
        if defense is self.given:
            return self.copy
        if isinstance(defense, DefenseWrapper):
            return defense.rewrap(self.in_place(defense.inner))
        raise TypeError(f"the copy is not one of this {type(defense).__name__}.")


@dataclass(frozen=True)
class OnFasterCopy(AdversaryWrapper):
    """The adversary against a copy of the defense that is equal up to rounding.

    A point very close to the decision boundary may be misclassified by the copy alone, and the
    adversary may have stopped there. Such rows are attacked again on the given defense. It costs
    the adversary and up to two outputs; the second attack is rare and not part of the stated cost.
    """

    pair: FasterCopy

    def added_forward(self, draws: int) -> int:
        return 2 * draws

    def move(self, context: AttackContext, defense: Defense, x: Tensor, y: Tensor) -> AttackResult:
        if defense.random or defense.unit != "example":
            raise ValueError(
                "OnFasterCopy needs a deterministic defense with independent rows; "
                f"{type(defense).__name__} is randomized or couples its rows."
            )
        copy = self.pair.in_place(defense)
        result = self.adversary.move(context, copy, x, y)
        correct = ~context.simulate(defense, result.point, y).always_misclassified
        rows = correct.nonzero()[:, 0]
        if not len(rows):
            return result
        there = context.restrict(rows).simulate(copy.restrict(rows), result.point[rows], y[rows])
        rows = rows[there.always_misclassified]
        if not len(rows):
            return result
        again = self.adversary.move(
            context.restrict(rows), defense.restrict(rows), x[rows], y[rows]
        )
        return result.with_rows(rows, again)
