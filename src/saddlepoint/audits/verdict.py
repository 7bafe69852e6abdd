"""What an audit found, and the verdict that follows from it: values, and one rule."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from saddlepoint.audits.statistics import Interval, wilson

Verdict = Literal["holds so far", "overstated", "cannot be told"]
Level = Literal["note", "warning", "serious"]
State = Literal["pass", "fail", "not run", "does not apply"]

# A defense may be weaker than its static net, or dearer and no better: findings about it, no faults of the evaluation.
WEAKER = "not weaker than the static net"
DEARER = "cost of an answer"


@dataclass(frozen=True)
class Symptom:
    """One finding: what was seen and what to do. A serious one means that the robust accuracy may be far too high."""

    name: str
    level: Level
    message: str
    remedy: str = ""  # in words
    trait: str = ""  # of the target, by which attacks can be chosen anew: "gradient", "random", "coupled", ...; empty: none


@dataclass(frozen=True)
class Item:
    """One line of the checklist, with what it was judged by."""

    name: str
    state: State
    evidence: str


@dataclass(frozen=True)
class StaticNet:
    """The static net inside a defense, on the worst of the points that were sent, beside the defense on its own worst ones."""

    clean_accuracy: float
    robust_accuracy: float
    only_defense: int  # images that stand only with the defense
    only_static: int  # and only without it
    p: float  # McNemar's exact test: how often chance makes two equally good ones so unequal


@dataclass(frozen=True)
class Cost:
    """What one answer of the defense costs beside one of its static net."""

    calls: float  # of the static net, per image
    graded: float  # of these, with gradients on: the defense optimizes as it answers
    seconds: float  # of an answer to a batch; of the processor, where that computes it
    static_seconds: float  # of the static net's

    @property
    def times(self) -> float:
        return self.seconds / self.static_seconds

    @property
    def dearer(self) -> bool:
        """Beyond what a clock can tell: a few milliseconds are what calling anything costs."""
        return self.calls > 1 or (self.times > 2 and self.seconds - self.static_seconds > 0.005)


@dataclass(frozen=True)
class CertifiedBound:
    """A lower bound: images whose answer no point of the set changes, proven, not tried."""

    accuracy: float
    method: str


@dataclass(frozen=True)
class Comparisons:
    """What the number is held against; None where there is nothing of the kind."""

    claim: float | None = None  # robust accuracy according to somebody
    standard: float | None = (
        None  # what attacks leave that know nothing of what the defense does at test time
    )
    static: StaticNet | None = None
    cost: Cost | None = None
    proven: CertifiedBound | None = None


@dataclass(frozen=True)
class Check:
    """One thing that was looked at, and what was found."""

    name: str
    passed: bool
    message: str


@dataclass(frozen=True)
class Verification:
    """All that was looked at. One disagreement is enough to fail."""

    folder: str
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)


class Ruling(NamedTuple):
    """A verdict and what it rests on."""

    verdict: Verdict
    reasons: tuple[str, ...]


def rule(
    robust: float,
    n: int,
    interval: Interval,
    checklist: Sequence[Item],
    symptoms: Sequence[Symptom],
    compared: Comparisons,
) -> Ruling:
    """Overstated if a number that somebody relies on is refuted; else it cannot be told if the evaluation has a gap; else it holds.

    A point that fools is a fact, however badly it was looked for: what refutes a number needs no complete checklist.
    """
    refuted = tuple(_refuted(robust, n, interval, checklist, compared))
    gaps = tuple(_gaps(checklist, symptoms))
    if refuted:
        return Ruling("overstated", (*refuted, *gaps))
    if gaps:
        return Ruling("cannot be told", gaps)
    passed = sum(item.state == "pass" for item in checklist)
    return Ruling("holds so far", (f"all {passed} items of the checklist that apply have passed.",))


def _refuted(
    robust: float, n: int, interval: Interval, checklist: Sequence[Item], compared: Comparisons
) -> Iterator[str]:
    if compared.claim is not None and interval.high < compared.claim:
        yield f"{_percent(compared.claim)} is claimed, but at most {_percent(robust)} ({interval}) stand."
    if compared.standard is not None and robust < wilson(compared.standard, n).low:
        yield (
            f"attacks that do not know the defense leave {_percent(compared.standard)}, those made for it {_percent(robust)}: a "
            "standard evaluation overstates it."
        )
    for item in checklist:
        if item.name in (WEAKER, DEARER) and item.state == "fail":
            yield f"{item.name}: {item.evidence}"


def _gaps(checklist: Sequence[Item], symptoms: Sequence[Symptom]) -> Iterator[str]:
    if not checklist:
        yield "the checklist was not run."
    for item in checklist:
        if item.state == "not run" or (item.state == "fail" and item.name not in (WEAKER, DEARER)):
            yield f"{'failed' if item.state == 'fail' else 'not run'}: {item.name}. {item.evidence[:1].upper()}{item.evidence[1:]}"
    for symptom in symptoms:
        if symptom.level == "serious":
            yield f"{symptom.name}: {symptom.message}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
