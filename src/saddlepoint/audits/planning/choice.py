"""One chosen adversary with its reason and cost."""

from __future__ import annotations

from dataclasses import dataclass

from saddlepoint.audits.verdict import ItemName, SymptomName
from saddlepoint.evaluation import Adversary


@dataclass(frozen=True)
class Choice:
    """An adversary, the reason for it, and its cost per example."""

    adversary: Adversary
    reason: str
    passes: int | None = None  # forward and backward passes at most; None: not known
    against: tuple[SymptomName | ItemName, ...] = ()  # what it is a remedy for

    @property
    def name(self) -> str:
        """The name of the adversary."""
        return self.adversary.name
