"""What remedies achieved, reported beside the symptoms that called for them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from saddlepoint.audits.evidence import Evidence
from saddlepoint.audits.verdict import Item, State, Symptom
from saddlepoint.phrases import count_of


@dataclass(frozen=True)
class RemedyResults:
    """The remedies that were run, by symptom or item, with the number of images they broke."""

    remedies: dict[str, tuple[str, ...]]

    @classmethod
    def of(cls, evidence: Evidence) -> RemedyResults:
        """From all adversaries, in the order in which they were run."""
        found: dict[str, tuple[str, ...]] = {}
        for choice, run in zip(evidence.plan.choices, evidence.runs, strict=True):
            for name in choice.against:
                # With other draws it may be weaker than those before it: it broke none.
                broken = max(evidence.broken_by(run), 0.0)
                attacked = evidence.row(run).attacked
                text = f"{choice.name}, which broke {_images(broken, attacked)}"
                found[name] = (*found.get(name, ()), text)
        return cls(found)

    def on_symptom(self, symptom: Symptom) -> Symptom:
        """The symptom with the remedies that were run for it."""
        return replace(symptom, message=f"{symptom.message}{self._text(symptom.name)}")

    def on_item(self, item: Item) -> Item:
        """A failed item with the remedies that were run for it."""
        if item.state is not State.FAIL:
            return item
        return replace(item, evidence=f"{item.evidence}{self._text(item.name)}")

    def _text(self, name: str) -> str:
        if name not in self.remedies:
            return ""
        return f" Remedies: {'; '.join(self.remedies[name])}."


def _images(broken: float, attacked: int) -> str:
    """The broken part of the attacked images."""
    if not attacked:
        return "none: no image was attacked"
    return count_of(min(broken, attacked), attacked, "attacked image")
