"""What a target is like, as it was measured, beside what it says of itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

CERTAIN = 1.0  # something was seen: that it exists needs no second look


@dataclass(frozen=True)
class Trait:
    """One way of behaving: was it seen, on what evidence, and does the target say so?"""

    name: str
    present: bool | None  # None: it could not be told
    evidence: str
    confidence: float  # that `present` is right, from 0 to 1; 0 where it could not be told
    declared: bool | None = None  # None: the target says nothing about it
    places: tuple[str, ...] = ()  # sites, layers or views where it was seen, or looked for
    amount: float | None = None  # how much, in the unit that the evidence names

    @property
    def denied(self) -> bool:
        """Measured, though the target declares the opposite."""
        return self.present is True and self.declared is False


@dataclass(frozen=True)
class Traits:
    """All that was looked for, in the order in which it was."""

    found: tuple[Trait, ...]

    def __iter__(self) -> Iterator[Trait]:
        return iter(self.found)

    def __len__(self) -> int:
        return len(self.found)

    def __contains__(self, name: object) -> bool:
        """Was it seen? `"random" in traits`."""
        return any(trait.name == name and trait.present for trait in self.found)

    def __getitem__(self, name: str) -> Trait:
        for trait in self.found:
            if trait.name == name:
                return trait
        raise KeyError(
            f"no trait is called {name!r}. Known: {', '.join(trait.name for trait in self.found)}."
        )

    @property
    def denied(self) -> tuple[Trait, ...]:
        """What the target has and says it has not."""
        return tuple(trait for trait in self.found if trait.denied)

    def record(self) -> list[dict[str, Any]]:
        """Plain values."""
        return [{**asdict(trait), "places": list(trait.places)} for trait in self.found]


def seen(
    name: str,
    evidence: str,
    *,
    declared: bool | None = None,
    places: tuple[str, ...] = (),
    amount: float | None = None,
) -> Trait:
    return Trait(name, True, evidence, CERTAIN, declared, places, amount)


def unseen(
    name: str,
    looks: int,
    evidence: str,
    *,
    declared: bool | None = None,
    places: tuple[str, ...] = (),
    amount: float | None = None,
) -> Trait:
    """Not in so many looks: the next one would not show it either with probability (n + 1) / (n + 2) (Laplace's rule)."""
    return Trait(name, False, evidence, (looks + 1) / (looks + 2), declared, places, amount)


def untold(name: str, why: str, *, declared: bool | None = None) -> Trait:
    return Trait(name, None, why, 0.0, declared)


def told(
    name: str, present: bool, looks: int, here: str, not_here: str, *, declared: bool | None = None
) -> Trait:
    """Seen, or not in so many looks."""
    return (
        seen(name, here, declared=declared)
        if present
        else unseen(name, looks, not_here, declared=declared)
    )
