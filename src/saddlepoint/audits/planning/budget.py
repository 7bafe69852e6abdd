"""What the queries that a threat model grants pay for."""

from __future__ import annotations

from dataclasses import dataclass

from saddlepoint.defenses import Defense
from saddlepoint.evaluation import Direct, Threat
from saddlepoint.gradients import Estimator


@dataclass(frozen=True)
class QueryBudget:
    """Passes, and what one gradient and one verdict take of them."""

    passes: int  # per example and adversary
    slope: int  # passes of one gradient
    verdict: int  # passes by which a combination of attacks tells whether one of them won

    @classmethod
    def of(cls, defense: Defense, threat: Threat, estimator: Estimator) -> QueryBudget:
        # One pass is a look at the clean image, another one orders the targets.
        query_budget = cls(
            (threat.queries or 2**62) - 2, estimator.cost, threat.draws if defense.random else 1
        )
        if query_budget.steps < 1:
            raise ValueError(
                f"{threat.queries} queries per example do not pay for one step along a gradient, which takes "
                f"{2 * query_budget.slope + 2}. Give the threat model more, or access='score'."
            )
        return query_budget

    @property
    def steps(self) -> int:
        """Steps of one attack that ends with a reading."""
        return self.passes // self.slope - 1

    def times(self, direct: Direct, most: int) -> int:
        """How often an attack can be repeated, its point and its peak looked at each time."""
        return min(self.passes // (self.slope * direct.attack.calls + 2 * self.verdict), most)
