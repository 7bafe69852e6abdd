"""Budgets: how many steps, targets, queries and draws an audit uses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from saddlepoint.defenses import Defense
from saddlepoint.evaluation import Direct, Threat
from saddlepoint.gradients import Estimator
from saddlepoint.phrases import agree, count, whole

Budget = Literal["quick", "standard", "thorough"]


@dataclass(frozen=True)
class BudgetSpec:
    """The settings of one budget."""

    steps: int  # of each APGD run
    targets: int  # target classes of targeted attacks
    targeted_steps: int  # APGD steps per target class
    queries: int  # of score- and decision-based attacks
    draws: int  # per evaluation of a randomized defense, and the most per EoT gradient
    fab_steps: int  # FAB steps per target class; 0: no FAB
    restarts: int  # of a short PGD; 0: none
    rounds: int  # in which adapted models are anticipated
    samples: int  # score differences per gradient where gradients fail; 0: none
    remedies: float  # passes for remedies, relative to the planned attacks; 0: no remedies
    fmn_steps: int = 0  # minimum-norm steps on rows that came close to success; 0: none
    square_schedule: tuple[int, ...] = ()  # queries of Square on all rows, then on close rows


BUDGETS: dict[Budget, BudgetSpec] = {
    "quick": BudgetSpec(
        steps=10,
        targets=0,
        targeted_steps=10,
        queries=0,
        draws=8,
        fab_steps=0,
        restarts=0,
        rounds=2,
        samples=0,
        remedies=0.0,
    ),
    "standard": BudgetSpec(
        steps=30,
        targets=9,
        targeted_steps=20,
        queries=300,
        draws=20,
        fab_steps=0,
        restarts=0,
        rounds=4,
        samples=32,
        remedies=0.75,
        fmn_steps=150,
        square_schedule=(80, 200, 600, 3000),
    ),
    "thorough": BudgetSpec(
        steps=100,
        targets=9,
        targeted_steps=100,
        queries=5000,
        draws=50,
        fab_steps=100,
        restarts=40,
        rounds=10,
        samples=128,
        remedies=0.5,
    ),
}


@dataclass(frozen=True)
class QueryBudget:
    """How many steps and repetitions the query limit of a threat model allows."""

    passes: int  # forward passes per example and adversary
    per_gradient: int  # forward passes of one gradient
    per_evaluation: int  # forward passes that decide whether an attack succeeded

    @classmethod
    def of(cls, defense: Defense, threat: Threat, estimator: Estimator) -> QueryBudget:
        """The budget of gradient attacks.

        Raises:
            ValueError: the query limit does not allow one gradient step.
        """
        # One pass evaluates the clean image, another one orders the target classes.
        passes = (threat.queries or 2**62) - 2
        budget = cls(passes, estimator.cost, threat.draws if defense.random else 1)
        if budget.steps < 1:
            raise ValueError(
                f"{count(threat.queries or 0, 'query')} per example "
                f"{agree(threat.queries or 0, 'is', 'are')} too few for one gradient step, which "
                f"takes {whole(2 * budget.per_gradient + 2)}. Allow more queries, or use "
                "access='score'."
            )
        return budget

    @property
    def steps(self) -> int:
        """The most steps of one attack, with one evaluation at its end."""
        return self.passes // self.per_gradient - 1

    def repetitions(self, direct: Direct, most: int) -> int:
        """How often an attack can be repeated, with two evaluations after each run."""
        each = self.per_gradient * direct.attack.calls + 2 * self.per_evaluation
        return min(self.passes // each, most)
