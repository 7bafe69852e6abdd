"""Findings of an audit, and the verdict that follows from them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from saddlepoint.audits.catalog import ItemName, SymptomName
from saddlepoint.audits.probes.traits import TraitName
from saddlepoint.audits.statistics import Interval, at_least_images, fewer_images, wilson
from saddlepoint.phrases import agree, at_most, count, percent, whole

__all__ = [
    "ABOUT_THE_DEFENSE",
    "CertifiedBound",
    "Check",
    "Comparisons",
    "Conclusion",
    "Cost",
    "Item",
    "ItemName",
    "Level",
    "State",
    "StaticNet",
    "Symptom",
    "SymptomName",
    "Verdict",
    "Verification",
    "decide",
    "enough_tested",
]


_ENOUGH = 30  # images; with fewer, the interval is wider than 30 points around one half


class Verdict(StrEnum):
    """What an audit concludes about its estimate of robust accuracy, not about the model."""

    CREDIBLE = "credible"  # every applicable check was run and passed
    OVERSTATED = (
        "overstated"  # a claim, a standard evaluation or the gain of the defense is refuted
    )
    INCONCLUSIVE = "inconclusive"  # a check failed or was not run


class Level(StrEnum):
    """How much a symptom weakens the estimate."""

    NOTE = "note"
    WARNING = "warning"
    SERIOUS = "serious"  # robust accuracy may be far too high; no credible verdict


class State(StrEnum):
    """The state of a checklist item."""

    PASS = "pass"
    FAIL = "fail"
    NOT_RUN = "not run"
    NOT_APPLICABLE = "not applicable"


# Findings about the defense: they refute its benefit, and are no errors of the evaluation.
ABOUT_THE_DEFENSE = (ItemName.NOT_WEAKER, ItemName.COST)


@dataclass(frozen=True)
class Symptom:
    """One finding: what was measured, and how much it weakens the estimate."""

    name: SymptomName
    level: Level
    message: str

    @property
    def remedy(self) -> str:
        """What a user can do about it; empty if there is no advice."""
        return self.name.advice

    @property
    def trait(self) -> TraitName | None:
        """The trait of the target that it points to."""
        return self.name.trait


@dataclass(frozen=True)
class Item:
    """One item of the checklist with its evidence."""

    name: ItemName
    state: State
    evidence: str


def enough_tested(n: int, clean: float, radius: float) -> Item:
    """Whether robust accuracy says anything about robustness.

    Args:
        n: number of images.
        clean: clean accuracy, in [0, 1].
        radius: radius of the perturbation set.
    """
    correct = f"{count(n, 'image')}, {percent(clean)} classified correctly without an attack"
    problems = []
    if not fewer_images(0.0, clean, n):
        problems.append("no clean image is classified correctly, so there is nothing to attack")
    if n < _ENOUGH:
        verb = agree(n, "is", "are")
        problems.append(
            f"{count(n, 'image')} {verb} too few for a conclusion; use at least {_ENOUGH}"
        )
    if radius == 0:
        problems.append("the radius is 0, so no perturbation was tested")
    if problems:
        return Item(ItemName.TESTED, State.FAIL, f"{'; '.join(problems)}.")
    return Item(ItemName.TESTED, State.PASS, f"{correct}.")


@dataclass(frozen=True)
class StaticNet:
    """The static net on the worst of all points, beside the defense on its own worst points."""

    clean_accuracy: float
    robust_accuracy: float
    only_defense: int  # images classified correctly by the defense only
    only_static: int  # images classified correctly by the static net only
    p: float  # McNemar's exact test: probability of a difference this large by chance


@dataclass(frozen=True)
class Cost:
    """The cost of one prediction of the defense beside one of its static net."""

    calls: float  # calls of the static net per image
    graded: float  # of these, calls with gradients enabled: the defense optimizes at test time
    seconds: float  # per batch; CPU time where the CPU computes
    static_seconds: float  # per batch of the static net

    @property
    def times(self) -> float:
        """Seconds relative to the static net."""
        return self.seconds / self.static_seconds

    @property
    def expensive(self) -> bool:
        """Beyond measurement error: a few milliseconds are the cost of any function call."""
        slower = self.times > 2 and self.seconds - self.static_seconds > 0.005
        return self.calls > 1 or slower


@dataclass(frozen=True)
class CertifiedBound:
    """A lower bound: the fraction of images with a prediction that no point of the set changes."""

    accuracy: float
    method: str


@dataclass(frozen=True)
class Comparisons:
    """What robust accuracy is compared with; None where there is nothing of the kind."""

    claim: float | None = None  # a claimed robust accuracy
    standard: float | None = None  # accuracy under attacks that know nothing of the defense
    static: StaticNet | None = None
    cost: Cost | None = None
    proven: CertifiedBound | None = None


@dataclass(frozen=True)
class Check:
    """One check of a saved run."""

    name: str
    passed: bool
    message: str


@dataclass(frozen=True)
class Verification:
    """All checks of a saved run. One failed check fails the verification."""

    folder: str
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """Whether every check passed."""
        return all(check.passed for check in self.checks)


class Conclusion(NamedTuple):
    """A verdict and its reasons."""

    verdict: Verdict
    reasons: tuple[str, ...]


def decide(
    robust: float,
    n: int,
    interval: Interval,
    checklist: Sequence[Item],
    symptoms: Sequence[Symptom],
    compared: Comparisons,
) -> Conclusion:
    """The verdict on an estimate of robust accuracy.

    *Overstated* if a number that people rely on is refuted, else *inconclusive* if the evaluation
    has a gap, else *credible*. An adversarial point is a fact, however it was found, so refuting a
    number needs no complete checklist.

    Args:
        robust: robust accuracy, in [0, 1].
        n: number of images.
        interval: confidence interval of `robust`.
        checklist: all items.
        symptoms: all symptoms.
        compared: claims and baselines.
    """
    refuted = tuple(_refuted(robust, n, interval, checklist, compared))
    gaps = tuple(_gaps(checklist, symptoms))
    if refuted:
        return Conclusion(Verdict.OVERSTATED, (*refuted, *gaps))
    if gaps:
        return Conclusion(Verdict.INCONCLUSIVE, gaps)
    passed = sum(item.state is State.PASS for item in checklist)
    every = agree(passed, "the only applicable item", f"all {whole(passed)} applicable items")
    return Conclusion(Verdict.CREDIBLE, (f"{every} of the checklist passed.",))


def claim_refuted(claim: float, interval: Interval, n: int) -> bool:
    """Whether a claimed robust accuracy, in [0, 1], is above the interval of n images."""
    return fewer_images(interval.high, claim, n)


def _refuted(
    robust: float,
    n: int,
    interval: Interval,
    checklist: Sequence[Item],
    compared: Comparisons,
) -> Iterator[str]:
    if compared.claim is not None and claim_refuted(compared.claim, interval, n):
        yield (
            f"the claim is {percent(compared.claim)}, but robust accuracy is {at_most(robust)} "
            f"({interval})."
        )
    if compared.standard is not None and _standard_refuted(robust, compared.standard, n):
        yield (
            f"attacks that do not know the defense leave {percent(compared.standard)}, attacks "
            f"made for it {percent(robust)}: a standard evaluation overstates robustness."
        )
    for item in checklist:
        if item.name in ABOUT_THE_DEFENSE and item.state is State.FAIL:
            yield f"{item.name}: {item.evidence}"


def _standard_refuted(robust: float, standard: float, n: int) -> bool:
    """Below the interval of the standard evaluation, and by two images: one may be chance."""
    below = fewer_images(robust, wilson(standard, n).low, n)
    return below and at_least_images(standard, robust, n, 2)


def _gaps(checklist: Sequence[Item], symptoms: Sequence[Symptom]) -> Iterator[str]:
    if not checklist:
        yield "the checklist was not run."
    for item in checklist:
        failed = item.state is State.FAIL and item.name not in ABOUT_THE_DEFENSE
        if failed or item.state is State.NOT_RUN:
            evidence = f"{item.evidence[:1].upper()}{item.evidence[1:]}"
            yield f"{'failed' if failed else 'not run'}: {item.name}. {evidence}"
    for symptom in symptoms:
        if symptom.level is Level.SERIOUS:
            yield f"{symptom.name}: {symptom.message}"
