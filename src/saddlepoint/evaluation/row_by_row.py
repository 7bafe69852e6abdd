"""Attacks that treat the rows of a batch one by one although the defense couples them.

Other attacks on a defense with coupled rows compare whole batches, because a mix of rows of
several batches was never evaluated. One step size and one best batch for all rows is weak where
each row depends on the others only a little. Here every row has its own; the batch of all final
points is evaluated together, by the adversary and by the referee.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from saddlepoint.attacks.best import AttackResult, BestSoFar
from saddlepoint.defenses import AmongBatch, Defense, DefenseWrapper, decoupled
from saddlepoint.evaluation.adversary import Adversary
from saddlepoint.evaluation.attack_context import AttackContext
from saddlepoint.evaluation.cost import PassCost
from saddlepoint.evaluation.direct import AroundDirect, Direct
from saddlepoint.phrases import count


@dataclass(frozen=True)
class RowByRow(AroundDirect):
    """Attack all rows of a batch at once, with a best point and a step size for every row."""

    @property
    def name(self) -> str:
        return f"{self.direct.name} by row"

    def cost(self, draws: int = 1) -> PassCost:
        return self.direct.cost(draws)

    def single_run(self) -> RowByRow:
        return self

    def move(self, context: AttackContext, defense: Defense, x: Tensor, y: Tensor) -> AttackResult:
        return self.direct.move(context, _Uncoupled(defense), x, y)


@dataclass(frozen=True)
class RowRounds(AroundDirect):
    """Attack the rows that are still classified correctly, round after round.

    In a round everything that rows share is fixed at its value for the points of the round before
    (`decoupled`). Rows are then independent: each has its own best point and step size, starts at
    a new random point, and leaves the attack once it is misclassified. After the round the whole
    batch is evaluated, because what rows share has changed. The batch with the most errors is
    proposed. If several attacks take turns, the number of steps doubles after all of them.

    Only for deterministic defenses that do not adapt. If `direct` does not stop at success, there
    is one round, in which all rows make all steps.

    Args:
        direct: the attack of the first round.
        rounds: number of rounds; default: 3.
        others: attacks that take turns with `direct`; default: none.
        start: points of the round before the first, [M, ...] by example id; None: clean images.
    """

    rounds: int = 3
    others: tuple[Direct, ...] = ()
    start: Tensor | None = None

    @property
    def name(self) -> str:
        return f"{self.direct.name} by row, {count(self.rounds, 'round')}"

    def children(self) -> Sequence[Adversary]:
        return (self.direct, *self.others)

    def cost(self, draws: int = 1) -> PassCost:
        runs = [self._attack(k).cost(draws) for k in range(self.rounds)]
        return PassCost.sum(runs).plus_forward(draws * (self.rounds + 1))

    def single_run(self) -> RowRounds:
        return self

    def map_direct(self, change: Callable[[Direct], Direct]) -> RowRounds:
        return replace(self, direct=change(self.direct), others=tuple(map(change, self.others)))

    def move(self, context: AttackContext, defense: Defense, x: Tensor, y: Tensor) -> AttackResult:
        if defense.random or defense.memory != "none":
            raise ValueError(
                f"{self.name} needs a deterministic defense that does not adapt. Attack whole "
                "batches instead."
            )
        best = BestSoFar(x, coupled=defense.coupled)
        points = x
        if self.start is not None:
            points = self.start[context.ids.to(self.start.device)].to(x)
        stops = self.direct.stop_at_success
        rounds = self.rounds if stops else 1
        for k in range(rounds + 1):
            single = decoupled(defense, points) if defense.coupled else defense
            answers = context.simulate(single, points, y)  # those of the defense itself
            best.update(points, answers.evaluation)
            rows = (~answers.always_misclassified | (not stops)).nonzero()[:, 0]
            if k == rounds or not len(rows):
                break
            part = context.again(k).restrict(rows)
            result = self._attack(k).move(part, single.restrict(rows), x[rows], y[rows])
            if _evaluates_all_rows(single):
                for counter in (context.meter.forward, context.meter.backward):
                    counter[context.rows] = counter[context.rows].amax()
            points = points.index_copy(0, rows, result.point)
        return best.result

    def _attack(self, number: int) -> Direct:
        """The attack of a round."""
        turns = (self.direct, *self.others)
        return turns[number % len(turns)].scaled(2 ** (number // len(turns)))


def _evaluates_all_rows(defense: Defense) -> bool:
    while isinstance(defense, DefenseWrapper):
        if isinstance(defense, AmongBatch):
            return True
        defense = defense.inner
    return False


class _Uncoupled(DefenseWrapper):
    """Declares the rows of a defense independent, so that attacks compare points row by row."""

    def __init__(self, inner: Defense) -> None:
        super().__init__(inner)
        self.coupled = False
