"""The cost of an audit: an upper bound on its passes, part by part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace

from saddlepoint.attacks.apgd import APGD
from saddlepoint.attacks.pgd import FGSM
from saddlepoint.audits.cells import Job
from saddlepoint.audits.planning.choice import Choice
from saddlepoint.audits.shared_noise import MOST_DRAWS, PARTS
from saddlepoint.audits.target.wrappers import ValueWithoutGrad
from saddlepoint.defenses import Defense, DefenseWrapper
from saddlepoint.evaluation import Adversary, RowSearch, from_starts

MANY = 64  # rows of a cheap diagnostic
FEW = 32  # rows of a diagnostic that costs as much as an attack
UNBOUNDED_STEPS = 20
SHRINK_STEPS = 7  # of `ShrinkPoints`: sizes are then known within 1/128 of the perturbation
_PROBE_ROWS = 16
_PROBE_CALLS = 500  # most calls of all probes; the search for a bypassed layer takes most of them
_MOST_REMEDIES = 10
_TRIALS = 4  # diagnostics that run an attack
_LANDSCAPE = 21  # evaluations and gradients of `MeasureLandscape`
_LANDSCAPE_DRAWS = 8  # of each of them


@dataclass(frozen=True)
class AuditCost:
    """The most forward and backward passes per image, on average over the images.

    All parts together include every call of the target, but not those of its static net.
    """

    probes: int
    attacks: int
    evaluations: int  # of the points of all attacks, with new randomness
    diagnostics: int
    remedies: int

    @property
    def total(self) -> int:
        """All parts together."""
        return sum(getattr(self, part.name) for part in fields(self))

    def __str__(self) -> str:
        parts = ", ".join(f"{part.name} {getattr(self, part.name)}" for part in fields(self))
        return f"at most {self.total} forward and backward passes per image ({parts})"


def audit_cost(job: Job, choices: Sequence[Choice], remedy_passes: int) -> AuditCost | None:
    """The cost of an audit; None if the cost of an adversary is not known.

    Args:
        job: target, images and threat model.
        choices: the planned adversaries.
        remedy_passes: mean passes per image for remedies.
    """
    defense = job.defense
    draws = job.threat.draws if defense.random else 1
    costs = [choice.adversary.cost(draws) for choice in choices]
    known = [cost for cost in costs if cost is not None]
    if len(known) < len(costs):
        return None
    n = len(job.x)
    calls = calls_per_pass(defense)
    rounds = 2 if remedy_passes else 1
    evaluation = _evaluation(defense, draws)
    remedies = remedy_passes + (_MOST_REMEDIES * evaluation if remedy_passes else 0)
    planned = len(choices) + 1 + rounds
    confirmed = 0 if job.faster is None else 2 * (len(choices) + rounds * _TRIALS)
    return AuditCost(
        probes=-(-_PROBE_CALLS * _PROBE_ROWS // n),
        attacks=calls * sum(cost.total for cost in known),
        evaluations=calls * (planned * evaluation + rounds * _precise_evaluation(job, draws))
        + confirmed,
        diagnostics=calls * rounds * _diagnostics(job, choices, draws),
        remedies=calls * remedies,
    )


def calls_per_pass(defense: Defense) -> int:
    """Calls of the target in one pass: a wrapper may call it with and without gradients."""
    if not isinstance(defense, DefenseWrapper):
        return 1
    return (2 if isinstance(defense, ValueWithoutGrad) else 1) * calls_per_pass(defense.inner)


def most_expensive_run(choices: Sequence[Choice], draws: int) -> int:
    """The passes per image of the most expensive single run of an iterative adversary."""
    return max((_total(run, draws) for run in _single_runs(choices)), default=0)


def repeated_passes(run: Adversary, draws: int) -> int:
    """The passes per image of the diagnostics that repeat a single run of an adversary."""
    return max(_watched(run, draws) + _longer(run, draws), 1)


def _evaluation(defense: Defense, draws: int) -> int:
    """Passes that evaluate one point: twice the draws, since one half selects the adversary."""
    return 2 * draws if defense.random else 2


def _precise_evaluation(job: Job, draws: int) -> int:
    """The most passes that evaluate worst points where images share their noise."""
    return MOST_DRAWS + 2 * max(draws // PARTS, 1) if job.shared_noise else 0


def _diagnostics(job: Job, choices: Sequence[Choice], draws: int) -> int:
    """Passes per image of one round of diagnostics."""
    n = len(job.x)
    evaluation = _evaluation(job.defense, draws)
    few = min(FEW, n)
    many = min(MANY, n)
    if job.defense.unit != "example":  # whole batches
        first = len(job.groups[0])
        few = first
        many = first
    landscape = 2 * _LANDSCAPE * (_LANDSCAPE_DRAWS if job.defense.random else 1)
    of_run = [
        few * (_watched(run, draws) + _longer(run, draws) + 3 * evaluation)
        + many * (_single_step(run, draws) + _unbounded(run, draws) + 2 * evaluation)
        for run in _single_runs(choices)
    ]
    cosine = 4 * max(draws, 1)
    rest = few * (landscape + cosine + _repeated(choices, draws)) + many * 2 + n * 2
    rest += n * _shrink(job.defense)
    return -(-(max(of_run, default=many * 4 * draws * UNBOUNDED_STEPS) + rest) // n)


def _shrink(defense: Defense) -> int:
    """Passes that shrink one worst point; a rejection is compared with the clean image."""
    if defense.random or defense.unit != "example":
        return 0
    return SHRINK_STEPS * (2 if defense.rejects else 1)


def _repeated(choices: Sequence[Choice], draws: int) -> int:
    """Passes of searches over single rows, which are repeated once."""
    searches = [c.adversary for c in choices if isinstance(c.adversary, RowSearch)]
    evaluation = 2 * draws
    return sum(_total(search, draws) + evaluation for search in searches)


def _watched(run: Adversary, draws: int) -> int:
    return _total(run, draws)


def _longer(run: Adversary, draws: int) -> int:
    return _total(from_starts(run.map_direct(lambda direct: direct.scaled(2)), 2), draws)


def _single_step(run: Adversary, draws: int) -> int:
    return _total(run.map_direct(lambda direct: replace(direct, attack=FGSM())), draws)


def _unbounded(run: Adversary, draws: int) -> int:
    wide = APGD(UNBOUNDED_STEPS)
    return _total(run.map_direct(lambda direct: replace(direct, attack=wide)), draws)


def _single_runs(choices: Sequence[Choice]) -> Iterator[Adversary]:
    for choice in choices:
        run = choice.adversary.single_run()
        white_box = choice.adversary.properties.white_box
        if run is not None and white_box and not run.properties.minimum_norm:
            yield run


def _total(adversary: Adversary, draws: int) -> int:
    cost = adversary.cost(draws)
    return 0 if cost is None else cost.total
