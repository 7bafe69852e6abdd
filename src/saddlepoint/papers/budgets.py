"""The budget of AutoAttack, used by the experiments of several papers."""

from __future__ import annotations

from dataclasses import dataclass

from saddlepoint.evaluation import Cascade, autoattack


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

    def __str__(self) -> str:
        counts = (
            counted(self.steps, "step"),
            counted(self.targets, "target"),
            counted(self.queries, "query", "queries"),
        )
        return "AutoAttack with {}, {} and {}".format(*counts)


def counted(count: int, singular: str, plural: str | None = None) -> str:
    """Format a count with its noun, for example `1 step` or `2 steps`."""
    noun = singular if count == 1 else plural or f"{singular}s"
    return f"{count} {noun}"
