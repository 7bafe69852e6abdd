"""Evolutionary search from the points where gradient attacks ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from saddlepoint.attacks.best import AttackResult
from saddlepoint.attacks.evolution import Evolution
from saddlepoint.attacks.losses import margin
from saddlepoint.defenses import Access, Defense
from saddlepoint.evaluation.adversary import Adversary, known_costs, strongest_need
from saddlepoint.evaluation.attack_context import AttackContext
from saddlepoint.evaluation.combinators import OtherKeys
from saddlepoint.evaluation.cost import PassCost
from saddlepoint.evaluation.direct import Direct
from saddlepoint.evaluation.properties import AdversaryProperties


@dataclass(frozen=True)
class Evolved(Adversary):
    """Adversaries whose points of highest loss are the population of an `Evolution`.

    Rows that one of the adversaries breaks are done. Only for deterministic defenses with
    independent rows. It costs all adversaries with two outputs each, and the queries.

    Args:
        name: the name shown in tables.
        adversaries: at least two; the same one may occur several times, with other random keys.
        queries: of the evolution, at least one more than there are adversaries.
    """

    name: str
    adversaries: tuple[Adversary, ...]
    queries: int

    def __post_init__(self) -> None:
        if not 2 <= len(self.adversaries) < self.queries:
            raise ValueError(
                "an evolution needs at least two members, and more queries than members, got "
                f"members: {len(self.adversaries)}, queries: {self.queries}."
            )

    @property
    def needs(self) -> Access:
        return strongest_need(self.adversaries)

    def children(self) -> Sequence[Adversary]:
        return self.adversaries

    @property
    def properties(self) -> AdversaryProperties:
        # What it breaks is broken by queries; gradients only chose where they start.
        return replace(super().properties, searches_on=True, approximate_backward=False)

    def cost(self, draws: int = 1) -> PassCost | None:
        costs = known_costs([adversary.cost(draws) for adversary in self.adversaries])
        if costs is None:
            return None
        return PassCost.sum(cost.plus_forward(draws) for cost in costs).plus_forward(self.queries)

    def move(self, context: AttackContext, defense: Defense, x: Tensor, y: Tensor) -> AttackResult:
        if defense.random or defense.unit != "example":
            raise ValueError(
                "Evolved needs a deterministic defense with independent rows; run its adversaries "
                "alone."
            )
        found = AttackResult(x, x)
        rows = torch.arange(len(x), device=x.device)
        members = x.new_empty(len(x), 0, *x.shape[1:])
        for k, adversary in enumerate(self.adversaries):
            part = context.restrict(rows)
            restricted = defense.restrict(rows)
            result = OtherKeys(adversary, k).move(part, restricted, x[rows], y[rows])
            found = found.with_rows(rows, result)
            broken = part.simulate(restricted, result.point, y[rows]).always_misclassified
            members = torch.cat([members, result.max_loss_point[:, None]], 1)[~broken]
            rows = rows[~broken]
            if not len(rows):
                return found
        search = Direct(self.name, Evolution(members, self.queries), loss=margin)
        end = search.move(context.restrict(rows), defense.restrict(rows), x[rows], y[rows])
        return found.with_rows(rows, end)
