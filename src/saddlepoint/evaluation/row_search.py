"""Search over single rows of a batch whose rows influence each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from saddlepoint.attacks.best import AttackResult
from saddlepoint.attacks.pgd import PGD, From
from saddlepoint.attacks.spaces import per_example
from saddlepoint.defenses import Access, Defense
from saddlepoint.evaluation.adversary import Adversary
from saddlepoint.evaluation.attack_context import AttackContext
from saddlepoint.evaluation.batch_control import BatchControl, PartialControl
from saddlepoint.evaluation.cost import PassCost
from saddlepoint.evaluation.direct import Direct
from saddlepoint.phrases import count

_EXCHANGES = 61  # salts of random keys
_SUBSETS = 67


@dataclass(frozen=True)
class RowSearch(Adversary):
    """Exchanges points of single rows, then moves few rows while all others keep their points.

    Attacks on a whole batch keep the batch with the most errors. Where rows compete, for example
    for the capacity of an expert, other rows are broken in every batch, and a step of all rows
    undoes what the step before gained. The search starts at the batch with the most errors of
    several attacks.

    1. One row at a time gets its point of another of these batches. First come rows that are
       classified correctly with points that were misclassified in the other batch, then with
       other points, then all other rows, each in random order.
    2. The rows that are still classified correctly are divided into random subsets. Each subset
       moves along gradients of the loss of the whole batch, while all other rows stay.

    A change is kept if the batch has more errors, or as many and a larger sum of min(margin, 0).
    Both steps are repeated `rounds` times. Where rows are independent, restarts are cheaper.

    Args:
        name: the name shown in tables.
        direct: the attack of a subset; its optimizer is `PGD`.
        starts: the attacks of the whole batch, at least one.
        queries: exchanges per round.
        subsets: subsets per round.
        rounds: number of rounds; default: 2.
    """

    name: str
    direct: Direct
    starts: tuple[Adversary, ...]
    queries: int
    subsets: int
    rounds: int = 2

    def __post_init__(self) -> None:
        if not isinstance(self.direct.attack, PGD) or not self.starts:
            raise ValueError(
                "RowSearch needs PGD, which can start at any point, and at least one attack of "
                f"the whole batch; got {type(self.direct.attack).__name__} and "
                f"{count(len(self.starts), 'attack')}."
            )

    @property
    def needs(self) -> Access:
        return self.direct.needs

    def children(self) -> Sequence[Adversary]:
        return (self.direct, *self.starts)

    def cost(self, draws: int = 1) -> PassCost | None:
        costs = [start.cost(draws) for start in self.starts]
        known = [cost.plus_forward(draws) for cost in costs if cost is not None]
        if len(known) < len(costs):
            return None
        moves = self.direct.cost().plus_forward(draws).times(self.subsets * self.rounds)
        return PassCost.sum([*known, moves]).plus_forward(draws * self.queries * self.rounds)

    def map_direct(self, change: Callable[[Direct], Direct]) -> RowSearch:
        return replace(self, direct=change(self.direct))

    def move(self, context: AttackContext, defense: Defense, x: Tensor, y: Tensor) -> AttackResult:
        def evaluated(points: Tensor) -> _Batch:
            found = context.simulate(defense, points, y).evaluation
            return _Batch(points, found.value, found.success)

        results = [
            start.move(context.again(k), defense, x, y) for k, start in enumerate(self.starts)
        ]
        pool = [evaluated(result.point) for result in results]
        best = max(pool, key=lambda batch: batch.score)
        for number in range(self.rounds):
            part = context.again(number)
            best = self._exchanged(part, pool, best, evaluated)
            for moved in self._subsets(part, ~best.success):
                trial = evaluated(self._advanced(part, defense, x, y, best.points, moved))
                pool.append(trial)
                best = trial if trial.score > best.score else best
        return AttackResult(best.points, best.points)

    def _exchanged(
        self,
        context: AttackContext,
        pool: Sequence[_Batch],
        best: _Batch,
        evaluated: Callable[[Tensor], _Batch],
    ) -> _Batch:
        """The best batch after exchanges of single rows with batches of the pool."""
        number = torch.arange(len(best.points), device=best.points.device)
        order = context.attacker_keys().fold_in(_EXCHANGES).uniform((len(pool),), torch.float64)
        correct = ~best.success[:, None]
        broken = torch.stack([batch.success for batch in pool], dim=1)  # [N, K]
        rank = order - correct.to(order) - (correct & broken).to(order)
        tried = 0
        for place in rank.flatten().argsort().tolist():
            row = place // len(pool)
            points = pool[place % len(pool)].points
            if tried == self.queries:
                break
            if torch.equal(points[row], best.points[row]):
                continue
            tried += 1
            other = per_example(number == row, points)
            trial = evaluated(torch.where(other, points, best.points))
            best = trial if trial.score > best.score else best
        return best

    def _subsets(self, context: AttackContext, correct: Tensor) -> Iterator[Tensor]:
        """Random subsets [N] bool of the rows that are classified correctly."""
        order = context.attacker_keys().fold_in(_SUBSETS).uniform((), torch.float64)
        rows = order.masked_fill(~correct, torch.inf).argsort()[: int(correct.sum())]
        for chosen in rows.tensor_split(self.subsets):
            if len(chosen):
                yield torch.zeros_like(correct).index_fill(0, chosen, True)

    def _advanced(
        self,
        context: AttackContext,
        defense: Defense,
        x: Tensor,
        y: Tensor,
        points: Tensor,
        moved: Tensor,
    ) -> Tensor:
        """The batch [N, ...] after gradient steps of the rows `moved`, [N] bool."""
        assert isinstance(self.direct.attack, PGD), "checked above"
        others_fixed = PartialControl(defense, moved, points, BatchControl())
        attack = From(points, self.direct.attack)
        found = replace(self.direct, attack=attack).move(context, others_fixed, x, y)
        return torch.where(per_example(moved, x), found.point, points)


class _Batch(NamedTuple):
    """An evaluated batch."""

    points: Tensor  # [N, ...]
    value: Tensor  # [N] margins
    success: Tensor  # [N] bool

    @property
    def score(self) -> tuple[int, float]:
        """The number of errors, and how close the other rows are to an error."""
        return int(self.success.sum()), float(self.value.double().clamp(max=0).sum())
