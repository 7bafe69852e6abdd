"""The parts of a remedy: its sizes, and the symptoms and items that call for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from saddlepoint.audits.remedies.planner import Planner
from saddlepoint.audits.verdict import ItemName, SymptomName
from saddlepoint.evaluation import Adversary

Variants = Callable[[Planner], Iterator["Variant"]]


@dataclass(frozen=True)
class Variant:
    """One size of a remedy: its name, its adversary, and a description."""

    name: str
    adversary: Adversary
    description: str


@dataclass(frozen=True)
class RemedyStrategy:
    """How some symptoms and items are treated; its variants from expensive to cheap."""

    triggers: tuple[SymptomName | ItemName, ...]
    variants: Variants
    most: float = 0.5  # of the passes for remedies, so that something is left for others
