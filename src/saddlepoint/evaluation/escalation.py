"""A second, longer attack on the rows for which a first one came close to success."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from saddlepoint.attacks.best import AttackResult
from saddlepoint.attacks.history import History
from saddlepoint.attacks.oracle import grants
from saddlepoint.attacks.spaces import per_example
from saddlepoint.defenses import Access, Defense
from saddlepoint.describe import OMIT_DEFAULT
from saddlepoint.evaluation.adversary import Adversary, known_costs, strongest_need
from saddlepoint.evaluation.attack_context import AttackContext
from saddlepoint.evaluation.cost import PassCost
from saddlepoint.evaluation.direct import Direct


@dataclass(frozen=True)
class TwoStage(Adversary):
    """Two adversaries, the second on some rows of the first, under the name of the first."""

    first: Adversary
    then: Adversary

    @property
    def name(self) -> str:
        return self.first.name

    @property
    def needs(self) -> Access:
        return strongest_need(self.children())

    def children(self) -> Sequence[Adversary]:
        return (self.first, self.then)

    def require_independent(self, defense: Defense) -> None:
        """Raise ValueError unless rows can be selected one by one."""
        if defense.random or defense.unit != "example":
            kind = type(self).__name__
            raise ValueError(
                f"{kind} needs a deterministic defense with independent rows; "
                "run its first adversary alone."
            )


@dataclass(frozen=True)
class Escalate(TwoStage):
    """`first` on all rows, then `then` on correctly classified rows that came close to success.

    The lead of the correct class is minus the margin, lead(x) = z_y - max_{j != y} z_j. `then`
    attacks the rows with 0 <= lead(x~) <= within lead(x), where x~ is the point of `first`. Each
    row is selected independently of the others. Escalations nest: `then` may be one. Only for
    deterministic defenses with independent rows. It costs both attacks and three outputs.

    A long search is wasted on rows that a short attack of another kind misclassifies, if that kind
    runs anyway: rows that `unless` misclassifies are not attacked by `then`. Its points are not
    proposed.
    """

    within: float  # fraction of the clean lead, in (0, 1]
    unless: Direct | None = field(default=None, metadata=OMIT_DEFAULT)

    def __post_init__(self) -> None:
        if not 0 < self.within <= 1:
            raise ValueError(
                f"`within` is a fraction of the clean lead in (0, 1], got within={self.within}."
            )

    def cost(self, draws: int = 1) -> PassCost | None:
        costs = known_costs([self.first.cost(draws), self.then.cost(draws)])
        if costs is None:
            return None
        if self.unless is not None:
            costs = [*costs, self.unless.cost(draws).plus_forward(draws)]
        return PassCost.sum(costs).plus_forward(3 * draws)

    def first_stage_cost(self, draws: int = 1) -> PassCost | None:
        return self.first.first_stage_cost(draws)

    def single_run(self) -> Adversary | None:
        return self.first.single_run()

    def move(self, context: AttackContext, defense: Defense, x: Tensor, y: Tensor) -> AttackResult:
        self.require_independent(defense)
        clean = context.simulate(defense, x, y).evaluation.value
        result = self.first.move(context, defense, x, y)
        reached, misclassified = context.simulate(defense, result.point, y)[:2]
        close = ~misclassified & (reached.value >= self.within * clean)
        rows = self._left(context, defense, x, y, close.nonzero()[:, 0])
        if not len(rows):
            return result
        # Other random keys: the second attack also starts from another point.
        part = context.again(1).restrict(rows)
        restricted = defense.restrict(rows)
        second = self.then.move(part, restricted, x[rows], y[rows])
        after = part.simulate(restricted, second.point, y[rows]).evaluation.value
        better = per_example(after > reached.value[rows], x)
        first = result[rows]
        kept = AttackResult(
            torch.where(better, second.point, first.point),
            torch.where(better, second.max_loss_point, first.max_loss_point),
        )
        return result.with_rows(rows, kept)

    def _left(
        self, context: AttackContext, defense: Defense, x: Tensor, y: Tensor, rows: Tensor
    ) -> Tensor:
        """The rows, [M], without those that `unless` misclassifies."""
        if self.unless is None or not len(rows):
            return rows
        if not grants(context.access(defense), self.unless.needs):
            return rows
        # Its successes are not successes of this adversary.
        part = replace(context.restrict(rows), history=History(context.history.rows))
        restricted = defense.restrict(rows)
        point = self.unless.move(part, restricted, x[rows], y[rows]).point
        return rows[~part.simulate(restricted, point, y[rows]).always_misclassified]
