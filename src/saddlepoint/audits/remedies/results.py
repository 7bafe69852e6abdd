"""What remedies took, beside the symptoms that called for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from saddlepoint.audits.diagnostics.trials import Trials
from saddlepoint.audits.planning.suite import Choice
from saddlepoint.audits.verdict import Item, Symptom


@dataclass(frozen=True)
class Tried:
    """By symptom or item: which remedies were tried for it, and what they took."""

    remedies: dict[str, tuple[str, ...]]

    @classmethod
    def of(cls, choices: Sequence[Choice], trials: Trials) -> Tried:
        """From all choices, in the order in which they were sent."""
        found: dict[str, tuple[str, ...]] = {}
        for choice, one, row in zip(choices, trials.sent, trials.rows, strict=True):
            for name in choice.against:
                took = f"{choice.name}, which took {_images(trials.taken(one))} of the {row.attacked} images it met"
                found[name] = (*found.get(name, ()), took)
        return cls(found)

    def told(self, symptom: Symptom) -> Symptom:
        """The symptom that was met again, with what was tried for it."""
        return replace(symptom, message=f"{symptom.message}{self._words(symptom.name)}")

    def beside(self, item: Item) -> Item:
        return (
            item
            if item.state != "fail"
            else replace(item, evidence=f"{item.evidence}{self._words(item.name)}")
        )

    def _words(self, name: str) -> str:
        return f" Tried: {', '.join(self.remedies[name])}." if name in self.remedies else ""


def _images(count: float) -> str:
    """Whole where answers are; of random ones the mean may be any."""
    whole = round(count)
    return f"{whole or 'none'}" if abs(count - whole) < 1e-6 else f"{count:.1f}"
