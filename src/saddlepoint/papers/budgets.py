"""The budget of AutoAttack, used by the experiments of several papers."""

from __future__ import annotations

import re
from dataclasses import dataclass

from saddlepoint.evaluation import Cascade, autoattack
from saddlepoint.papers.result import Result

_STATED = re.compile(
    r"AutoAttack(?:, its attacks)? with (\d+) steps?, (\d+) targets? and (\d+) quer(?:y|ies)"
)
_NAMED = re.compile(r"\b(?:AutoAttack|AA)\b")


@dataclass(frozen=True)
class AutoAttackBudget:
    """Steps, target classes and queries of AutoAttack; the defaults are the standard ones."""

    steps: int = 100  # of APGD-CE, targeted APGD and targeted FAB
    targets: int = 9  # target classes of the targeted attacks
    queries: int = 5000  # of Square

    def attack(self, name: str = "autoattack") -> Cascade:
        """Return AutoAttack with this budget under the given name."""
        parts = autoattack(steps=self.steps, targets=self.targets, queries=self.queries)
        return Cascade(name, parts)

    @property
    def title(self) -> str:
        """The name in tables: AutoAttack only with the standard budget."""
        if self == AutoAttackBudget():
            return "AutoAttack"
        return "APGD+FAB+Square ({}, {}, {})".format(*self._counts)

    def __str__(self) -> str:
        if self == AutoAttackBudget():
            return "AutoAttack with {}, {} and {}".format(*self._counts)
        return "in place of AutoAttack, its attacks with {}, {} and {}".format(*self._counts)

    @property
    def _counts(self) -> tuple[str, str, str]:
        return (
            counted(self.steps, "step"),
            counted(self.targets, "target"),
            counted(self.queries, "query", "queries"),
        )


def stated_budgets(text: str) -> list[AutoAttackBudget]:
    """Read the budgets that a text states in the words of `str(AutoAttackBudget(...))`."""
    return [AutoAttackBudget(*map(int, found)) for found in _STATED.findall(text)]


def reduced_autoattack(result: Result) -> str | None:
    """A warning if tables have numbers of AutoAttack and the notes state a smaller budget.

    Args:
        result: a result; its notes state the budget.
    """
    standard = AutoAttackBudget()
    budgets = [
        budget for note in result.notes for budget in stated_budgets(note) if budget != standard
    ]
    named = any(
        _NAMED.search(text)
        for table in result.tables
        for text in (*table.columns, *(label for row in table.rows for label in row.labels))
    )
    if not (named and budgets):
        return None
    return (
        f"AutoAttack (AA) in these tables is not the standard one, but "
        f"{' or '.join(dict.fromkeys(budget.title for budget in budgets))}. With the standard "
        "budget accuracies may be lower."
    )


def counted(count: int, singular: str, plural: str | None = None) -> str:
    """Format a count with its noun, for example `1 step` or `2 steps`."""
    noun = singular if count == 1 else plural or f"{singular}s"
    return f"{count} {noun}"
