"""Findings of an audit, and the verdict that follows from them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Self

from saddlepoint.audits.probes.traits import TraitName
from saddlepoint.audits.statistics import Interval, wilson


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


class SymptomName(StrEnum):
    """All symptoms, each with advice and the trait that it points to.

    A symptom is a sign that attacks were weaker than they could be, or a fact about the target that
    the reader of the number has to know.
    """

    advice: str
    trait: TraitName | None

    def __new__(cls, value: str, advice: str = "", trait: TraitName | None = None) -> Self:
        member = str.__new__(cls, value)
        member._value_ = value
        member.advice = advice
        member.trait = trait
        return member

    # Found by probes.
    HARD_BRANCHES = "hard branches"
    NO_GRADIENT = "no gradient"
    NON_FINITE_GRADIENTS = "non-finite gradients"
    ZERO_GRADIENTS = "vanishing gradients"
    HIDDEN_SCORES = "hidden scores"
    WRONG_GRADIENTS = "misdirected gradients"
    SEVERAL_EXITS = "several exits"
    PROBABILITIES = "probabilities"
    CHANGES_ITSELF = "changes itself"
    GRADIENT_MODE = "output depends on gradient mode"
    LABELS_ONLY = "labels only"
    NO_GRADIENT_ACCESS = "no gradient access"
    RANDOM_OUTPUTS = "random outputs"
    STATEFUL = "stateful"
    COUPLED_ROWS = "coupled rows"
    NOT_COPYABLE = "cannot be copied"
    TRAINING_MODE = "training mode inside"
    NOT_ANTICIPATED = "adaptation not anticipated"
    # Found in the outcomes of attacks.
    BLACK_BOX_STRONGER = (
        "black box beats white box",
        "Find the step that hides the gradients and give it a rule (BPDA), or estimate gradients "
        "from scores (SPSA).",
        TraitName.ZERO_GRADIENTS,
    )
    NOT_CONVERGED = "not converged", "Use a larger budget: it would break more images."
    LOSS_INCREASING = (
        "loss still increasing",
        "Give the attack more steps or queries, or the audit a larger budget.",
    )
    CLEAN_COPIES = "clean copies"
    REJECTIONS = "rejections"
    OUT_OF_MEMORY = "memory"
    RESCORING_DISAGREES = "re-scoring disagrees"
    TRANSFER_STRONGER = (
        "transfer beats white box",
        "Replace the backward pass of what the defense adds (BPDA with the identity), or aim at "
        "its intermediate views.",
        TraitName.ZERO_GRADIENTS,
    )
    TRANSFER_FAILS = "transfer fails"
    # Found by diagnostics.
    UNBOUNDED_FAILS = (
        "unbounded attack fails",
        "Find the step that hides the gradients and give it a rule (BPDA), or estimate gradients "
        "from scores (SPSA).",
        TraitName.ZERO_GRADIENTS,
    )
    EOT_NOT_CONVERGED = (
        "EoT has not converged",
        "Average over more draws, or fix the randomness.",
        TraitName.NOISY_GRADIENTS,
    )
    SILENT_SUCCESS = (
        "silent success",
        "Keep the best point of an attack, not its last; if it does, the target keeps state.",
        TraitName.STATE,
    )
    UNAVAILABLE_GRADIENTS = (
        "unavailable gradients",
        "Find the step with zero gradient and give it a rule (BPDA), or use another loss where "
        "logits saturate.",
        TraitName.ZERO_GRADIENTS,
    )
    INCOMPLETE_OPTIMIZATION = "incomplete optimization", "Give the attack more steps."
    OSCILLATING_LOSS = "oscillating loss", "Use APGD, or a smaller step_size."
    UNSTABLE_PREDICTIONS = (
        "unstable predictions",
        "Average gradients over nearby points, or over more draws (EoT).",
        TraitName.NOISY_GRADIENTS,
    )
    GRADIENTS_DISAGREE = (
        "gradients disagree",
        "Smooth them: average over nearby points, as VMI does, or over draws (EoT).",
        TraitName.NOISY_GRADIENTS,
    )
    OVERSHOOTING = (
        "overshooting",
        "Use smaller steps, or a minimum-norm attack (FAB, FMN).",
    )
    PIECEWISE_CONSTANT = (
        "piecewise constant",
        "Give the quantizing step a rule (BPDA), or rely on attacks without gradients.",
        TraitName.QUANTIZED,
    )
    SOLVER_NOT_CONVERGED = "solver not converged"
    BACKWARD_NOT_CONVERGED = "backward solve not converged"
    # Found in exit games.
    EXPLOITABLE = "exploitable"
    GAIN_IN_NOISE = "NEED's gain is within the noise"
    NO_GENERALIZATION = "the value does not generalize"
    OUTSIDE_ATTACK = "an attack outside the game is stronger"
    LOST_PER_IMAGE = "the gain is lost if the attacker chooses per image"


class ItemName(StrEnum):
    """All items of the checklist, each with what it checks and where the check is from.

    The six steps of Croce et al. 2022 (Sec. 4) and the signs of Carlini et al. 2019. The last two
    are findings about the defense, not about the evaluation.
    """

    description: str

    def __new__(cls, value: str, description: str = "") -> Self:
        member = str.__new__(cls, value)
        member._value_ = value
        member.description = description
        return member

    TRANSFER = (
        "transfer from the static net",
        "Step 1: transfer points of highest loss from the static net. A clean image in place of a "
        "failed attack would flatter the defense.",
    )
    BLACK_BOX = (
        "black-box attacks",
        "Step 2: attack the defense and its static net without gradients. The defense should be "
        "the more robust one.",
    )
    WHITE_BOX = (
        "white-box attacks on the full defense",
        "Step 3: follow gradients of the whole defense, and check that they are not zero.",
    )
    BACKWARD = (
        "approximate backward passes",
        "Step 4: where gradients fail, replace backward passes. Such attacks must find at least "
        "what attacks without gradients find.",
    )
    RANDOMNESS = (
        "randomness averaged or fixed",
        "Step 5: average gradients over random draws, or fix the draws. Too few draws give noise.",
    )
    ADAPTIVE = (
        "adaptive attacks are the strongest",
        "Step 6: attacks made for the defense must be at least as strong as attacks made for a "
        "static net.",
    )
    SINGLE_STEP = (
        "iterative attacks beat single-step attacks",
        "Carlini et al. 2019: a single step that breaks more than many steps shows that the many "
        "steps were badly directed.",
    )
    CONVERGED = (
        "more steps and restarts change nothing",
        "Correctly classified images must stay so after twice the steps from other starts.",
    )
    UNBOUNDED = (
        "an unbounded attack succeeds",
        "Carlini et al. 2019: with a radius that allows a gray image, no image may survive.",
    )
    MASKED = (
        "black-box attacks break nothing more",
        "Carlini et al. 2019: attacks with less information must not break more images.",
    )
    CLEAN = (
        "no attack raises the accuracy",
        "Accuracy under attack above clean accuracy shows an attack that helps the defense.",
    )
    NOT_WEAKER = (
        "not weaker than the static net",
        "The defense against its static net, compared image by image (McNemar's exact test).",
    )
    COST = (
        "cost of a prediction",
        "A defense that costs more than its static net and is not more robust costs too much.",
    )


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
    """A lower bound: the fraction of images whose prediction no point of the set changes."""

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
    return Conclusion(
        Verdict.CREDIBLE, (f"all {passed} applicable items of the checklist passed.",)
    )


def _refuted(
    robust: float,
    n: int,
    interval: Interval,
    checklist: Sequence[Item],
    compared: Comparisons,
) -> Iterator[str]:
    if compared.claim is not None and interval.high < compared.claim:
        yield (
            f"the claim is {_percent(compared.claim)}, but robust accuracy is "
            f"≤ {_percent(robust)} ({interval})."
        )
    if compared.standard is not None and robust < wilson(compared.standard, n).low:
        yield (
            f"attacks that do not know the defense leave {_percent(compared.standard)}, attacks "
            f"made for it {_percent(robust)}: a standard evaluation overstates robustness."
        )
    for item in checklist:
        if item.name in ABOUT_THE_DEFENSE and item.state is State.FAIL:
            yield f"{item.name}: {item.evidence}"


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


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
