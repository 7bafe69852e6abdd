"""Attacks that treat the rows of a batch one by one although the defense couples them.

Elsewhere in this library a defense with coupled rows is attacked by whole batches, because a mix of
rows of several batches was never evaluated. The evaluators' code keeps a best point and a step size
for every row instead. Here attacks do the same; the referee evaluates the batch of all final points
on the defense itself.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from saddlepoint.attacks.best import AttackResult, BestSoFar
from saddlepoint.defenses import Defense, DefenseWrapper
from saddlepoint.evaluation import AttackContext
from saddlepoint.evaluation.cost import PassCost
from saddlepoint.evaluation.direct import AroundDirect
from saddlepoint.zoo.adaptive import SOAP


@dataclass(frozen=True)
class RowByRow(AroundDirect):
    """Attack all rows of a batch at once, with a best point and a step size for every row."""

    def cost(self, draws: int = 1) -> PassCost:
        return self.direct.cost(draws)

    def move(self, context: AttackContext, defense: Defense, x: Tensor, y: Tensor) -> AttackResult:
        return self.direct.move(context, _Uncoupled(defense), x, y)


@dataclass(frozen=True)
class AtSelectedRadius(AroundDirect):
    """Attack SOAP at the radius that its batch selects, in rounds.

    A round attacks the rows that are classified correctly at the radius that SOAP selects for the
    points of the round before, from a new random start, with twice the steps. At one radius rows
    are independent: misclassified rows leave the attack, and no pass is spent on other radii. The
    batch with the most errors is proposed.

    Args:
        direct: the attack on SOAP with the steps of the first round.
        rounds: number of rounds.
    """

    rounds: int

    def cost(self, draws: int = 1) -> PassCost:
        runs = [self.direct.scaled(2**k).cost(draws) for k in range(self.rounds)]
        return PassCost.sum(runs).plus_forward(draws * (self.rounds + 1))

    def move(self, context: AttackContext, defense: Defense, x: Tensor, y: Tensor) -> AttackResult:
        assert isinstance(defense, SOAP)
        assert defense.coupled, "else each row selects a radius of its own"
        best = BestSoFar(x, coupled=True)
        points = x
        for k in range(self.rounds + 1):
            selected = defense.at_radius(float(defense.select_radius(points)[0]))
            answers = context.simulate(selected, points, y)  # those of the defense itself
            best.update(points, answers.evaluation)
            rows = (~answers.always_misclassified).nonzero()[:, 0]
            if k == self.rounds or not len(rows):
                break
            attack = replace(self.direct.scaled(2**k), stop_at_success=True)
            part = context.again(k).restrict(rows)
            result = attack.move(part, selected.restrict(rows), x[rows], y[rows])
            points = points.index_copy(0, rows, result.point)
        return best.result


class _Uncoupled(DefenseWrapper):
    """Declares the rows of a defense independent, so that attacks compare points row by row."""

    def __init__(self, inner: Defense) -> None:
        super().__init__(inner)
        self.coupled = False
