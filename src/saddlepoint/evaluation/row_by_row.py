"""Attacks that treat the rows of a batch one by one although the defense couples them.

Other attacks on a defense with coupled rows compare whole batches, because a mix of rows of
several batches was never evaluated. One step size and one best batch for all rows is weak where
each row depends on the others only a little. Here every row has its own; the batch of all final
points is evaluated together, by the adversary and by the referee.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from saddlepoint.attacks.best import AttackResult, BestSoFar
from saddlepoint.attacks.ensemble import MinLoss
from saddlepoint.defenses import AmongBatch, Defense, DefenseWrapper, decoupled
from saddlepoint.evaluation.adversary import Adversary
from saddlepoint.evaluation.attack_context import AttackContext
from saddlepoint.evaluation.cost import PassCost
from saddlepoint.evaluation.direct import AroundDirect, Direct
from saddlepoint.phrases import count

_CONTINUED = 2  # rounds of a continued attack
_MODELS = 3  # values of what rows share for which one row is attacked


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
    batch is evaluated, because what rows share has changed. A row that is classified correctly
    again for this reason is attacked for the values of the last three rounds at once: otherwise a
    choice of the whole batch may alternate, and rows that are broken for one choice are not for
    the next. The batch with the most errors is proposed.

    Only for deterministic defenses that do not adapt. If `direct` does not stop at success, there
    is one round, in which all rows make all steps.

    Args:
        direct: the attack of the first round.
        then: the attacks of later rounds; default: none.
        start: points of the round before the first, [M, ...] by example id; None: clean images.
    """

    then: tuple[Direct, ...] = ()
    start: Tensor | None = None

    @property
    def name(self) -> str:
        return f"{self.direct.name} by row, {count(len(self.attacks), 'round')}"

    @property
    def attacks(self) -> tuple[Direct, ...]:
        """The attacks of all rounds."""
        return (self.direct, *self.then)

    @property
    def starts_per_run(self) -> int:
        return len(self.attacks) if self.direct.stop_at_success else 1

    def children(self) -> Sequence[Adversary]:
        return self.attacks

    def cost(self, draws: int = 1) -> PassCost:
        # Where all rows are evaluated together, every row is in both attacks of a round.
        runs = [attack.cost(draws).times(_MODELS + 1) for attack in self.attacks]
        evaluations = _MODELS * len(runs) + 1
        return PassCost.sum(runs).plus_forward(draws * evaluations)

    def single_run(self) -> RowRounds:
        return self

    def map_direct(self, change: Callable[[Direct], Direct]) -> RowRounds:
        return replace(self, direct=change(self.direct), then=tuple(map(change, self.then)))

    def continued(self, points: Tensor) -> RowRounds:
        """The last rounds, on rows that are classified correctly at these points, by example id."""
        first, *later = self.attacks[-_CONTINUED:]
        return replace(self, direct=first, then=tuple(later), start=points)

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
        attacks = self.attacks if stops else (self.direct,)
        earlier: list[Defense] = []  # the defense in the rounds before, the last one first
        for k in range(len(attacks) + 1):
            single = decoupled(defense, points) if defense.coupled else defense
            answers = context.simulate(single, points, y)  # those of the defense itself
            best.update(points, answers.evaluation)
            attacked = ~answers.always_misclassified | (not stops)
            if k == len(attacks) or not attacked.any():
                break
            values = answers.evaluation.value
            earlier, again = _correct_again(context, earlier, points, attacked, y, values)
            part = context.again(k)
            points = _attacked(attacks[k], part, [single], points, attacked & ~again, x, y)
            models = [single, *earlier]
            points = _attacked(attacks[k], part, models, points, attacked & again, x, y)
            earlier = [single, *earlier][: _MODELS - 1]
        return best.result


def _correct_again(
    context: AttackContext,
    earlier: Sequence[Defense],
    points: Tensor,
    attacked: Tensor,
    y: Tensor,
    values: Tensor,
) -> tuple[list[Defense], Tensor]:
    """The defenses of earlier rounds, and the attacked rows that one of them misclassifies.

    Args:
        context: the context of the batch.
        earlier: the defenses.
        points: the points of all rows, [N, ...].
        attacked: [N] bool.
        y: labels, [N].
        values: margins of the present round, [N]. A defense with the same ones is left out.

    Returns:
        The other defenses, and [N] bool.
    """
    rows = attacked.nonzero()[:, 0]
    part = context.restrict(rows)
    found = torch.zeros_like(attacked[rows])
    others = []
    for model in earlier:
        answers = part.simulate(model.restrict(rows), points[rows], y[rows])
        if not torch.allclose(answers.evaluation.value, values[rows]):
            others.append(model)
            found = found | answers.always_misclassified
    return others, torch.zeros_like(attacked).index_copy(0, rows, found)


def _attacked(
    attack: Direct,
    context: AttackContext,
    models: Sequence[Defense],
    points: Tensor,
    attacked: Tensor,
    x: Tensor,
    y: Tensor,
) -> Tensor:
    """The points after a round in which the rows `attacked`, [N] bool, leave theirs."""
    rows = attacked.nonzero()[:, 0]
    if not len(rows):
        return points
    restricted = [model.restrict(rows) for model in models]
    part = context.restrict(rows)
    result = attack.against(restricted, part, x[rows], y[rows], MinLoss())
    if any(_evaluates_all_rows(model) for model in models):
        for counter in (context.meter.forward, context.meter.backward):
            counter[context.rows] = counter[context.rows].amax()
    return points.index_copy(0, rows, result.point)


def _evaluates_all_rows(defense: Defense) -> bool:
    while isinstance(defense, DefenseWrapper):
        if isinstance(defense, AmongBatch):
            return True
        defense = defense.inner
    return False


class _Uncoupled(DefenseWrapper):
    """The defense with `coupled` set to False, so that attacks compare points row by row."""

    def __init__(self, inner: Defense) -> None:
        super().__init__(inner)
        self.coupled = False
