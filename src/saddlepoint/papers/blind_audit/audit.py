"""Compares a blind audit of each defense with the attacks of the defense's paper, per image."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from saddlepoint.audits.planning.budget import Budget
from saddlepoint.audits.result import Audit
from saddlepoint.evaluation.bootstrap import mean_of
from saddlepoint.papers.blind_audit import EXPERIMENTS
from saddlepoint.papers.blind_audit.cases import (
    DRAWS,
    MAX_TEST_IMAGES,
    TRAINING_IMAGES_PER_TEST_IMAGE,
    AuditCase,
    adaptive_cases,
    equilibrium_cases,
    multi_exit_cases,
    not_audited,
    transductive_cases,
)
from saddlepoint.papers.cells import accuracy_cell
from saddlepoint.papers.registry import Request, Scale
from saddlepoint.papers.result import Cell, Result, Row, Table
from saddlepoint.papers.runner import Runner

_THREADS = 1
TOLERANCE = 1.0  # percentage points by which the audit may exceed the paper's attack
LABELS = (
    "defense",
    "data",
    "images",
    "the paper's attack",
    "decisive attack of the audit",
    "verdict",
)
COLUMNS = (
    "clean",
    "the paper's attack",
    "audit",
    "audit minus the paper's attack",
    "audit, at most as many passes as the paper's attack",
    "published budget of the paper's attack that was used, %",
    "forward passes of the paper's attack",
    "backward passes of the paper's attack",
    "forward passes of the audit",
    "backward passes of the audit",
)
NOTES = (
    "the audit receives only the defense, the images and the threat model, and selects its attacks "
    "from what it measures; the paper's attack is the strongest of the paper's attacks on this "
    "defense, run with the budget of this scale",
    "the audit's accuracy is the worst case over all its attacks, per image, or per batch if the "
    "defense couples the images of a batch; the paper's attack is a single attack",
    "the passes in the table are per image, of the defense or, where an attack is transferred, of "
    "the static network, which is cheaper; the total seconds and passes are those of the audits",
    "at most as many passes: the worst case over the first attacks of the audit that together "
    "take no more passes than the paper's attack",
    "published budget: the most passes of the paper's attack here, relative to its published "
    "budget; an audit is compared with an attack that has its published budget, or at equal passes",
    "decisive attack: the attack that lowered the running worst-case accuracy the most",
)
TRANSDUCTIVE_NOTES = (
    f"RMC, DANN, TADV and URejectron are scored over {DRAWS} random draws, because every draw "
    "trains a network; an audit uses more draws by default",
    f"URejectron is evaluated on at most {MAX_TEST_IMAGES} images and compares them with at most "
    f"{TRAINING_IMAGES_PER_TEST_IMAGE * MAX_TEST_IMAGES} training images; a rejected image counts "
    "as correct",
)


@dataclass(frozen=True)
class AuditSetting:
    """Size of the audits at one scale."""

    budget: Budget
    max_defenses: int | None = None  # audited defenses per experiment; None: all


SETTINGS: Mapping[Scale, AuditSetting] = {
    "tiny": AuditSetting("quick", 1),
    "small": AuditSetting("standard"),
    "paper": AuditSetting("standard"),
}


@dataclass(frozen=True)
class AuditedCase:
    """A defense with the attacks of its paper and the result of its blind audit."""

    case: AuditCase
    audit: Audit

    @classmethod
    def run(cls, runner: Runner, case: AuditCase, budget: Budget) -> AuditedCase:
        """Audit the defense of a case.

        Args:
            runner: runs the audit and stores it; its batch size is replaced by that of the case.
            case: the defense, its images and its threat model.
            budget: name of the audit's budget.

        Returns:
            The case together with its audit.
        """
        runner = replace(runner, batch=case.batch)
        audit = runner.audit(
            case.defense,
            case.images,
            threat=case.threat,
            budget=budget,
            name=f"{case.name} on {case.data}",
        )
        return cls(case, audit)

    @property
    def difference(self) -> Cell:
        """Accuracy under the audit minus accuracy under the paper's attack, in points."""
        found = mean_of(self.audit.correct.double().cpu() - self.case.attack.correct)
        return Cell((100 * found.value,), interval=(100 * found.low, 100 * found.high))

    @property
    def at_equal_passes(self) -> float | None:
        """Accuracy in percent under attacks with at most as many passes as the paper's attack.

        These are the first attacks of the audit. None if the first one takes more passes.
        """
        passes = 0.0
        accuracy = None
        for row in self.audit.rows:
            passes += row.forward + row.backward
            if passes > self.case.attack.passes:
                break
            accuracy = 100 * row.running
        return accuracy

    @property
    def excess(self) -> float | None:
        """Points by which the audit exceeds the paper's attack in an equal comparison.

        The audit is compared with the published budget of the attack or, if that was reduced, at
        equal passes. None if neither is possible, or if the attack is no measure of an audit.
        """
        if self.case.not_compared:
            return None
        if self.case.attack.has_published_budget:
            return self.difference.mean
        equal = self.at_equal_passes
        return None if equal is None else equal - self.case.attack.accuracy

    @property
    def audit_is_weaker(self) -> bool:
        """Whether an equal comparison finds the audit weaker by over `TOLERANCE` points."""
        return self.excess is not None and self.excess > TOLERANCE

    @property
    def decisive(self) -> str:
        """Name of the attack that lowered the audit's running worst case the most."""
        return max(self.audit.rows, key=lambda row: row.gain).name if self.audit.rows else "none"

    def row(self) -> Row:
        """Row of this defense in the table, with `LABELS` and `COLUMNS`."""
        case = self.case
        attack = case.attack
        rows = self.audit.rows
        equal = self.at_equal_passes
        labels = (
            case.name,
            case.data,
            str(len(case.images.x)),
            case.strongest,
            self.decisive,
            self.audit.verdict,
        )
        cells = (
            accuracy_cell(case.correct_clean),
            accuracy_cell(attack.correct),
            accuracy_cell(self.audit.correct.double().cpu()),
            self.difference,
            None if equal is None else Cell((equal,)),
            Cell((100 * attack.share,)),
            Cell((attack.forward,)),
            Cell((attack.backward,)),
            Cell((sum(row.forward for row in rows),)),
            Cell((sum(row.backward for row in rows),)),
        )
        return Row(labels, cells)

    @property
    def passes(self) -> float:
        """Forward and backward passes of the audit per image."""
        return sum(row.forward + row.backward for row in self.audit.rows)

    def finding(self) -> str:
        """One sentence that compares the audit with the paper's attack, with the passes of both."""
        attack = self.case.attack
        difference = self.difference
        assert difference.interval is not None
        low, high = difference.interval
        points = f"{difference.mean:+.1f} points ({low:+.1f} to {high:+.1f})"
        return (
            f"{self.case.name}: {points} from {self.case.strongest} ({attack.passes:.0f} passes "
            f"per image, {100 * attack.share:.0f} % of the published budget) to the audit "
            f"({self.passes:.0f} passes); {self._judgment()}."
        )

    def _judgment(self) -> str:
        """How an equal comparison comes out, and which one that is."""
        if self.case.not_compared:
            return f"this is no comparison: {self.case.not_compared}"
        excess = self.excess
        if excess is None:
            return (
                "this is no equal comparison: the budget of the paper's attack was reduced, and "
                "the first attack of the audit already takes more passes"
            )
        basis = "with the published budget of the paper's attack"
        if not self.case.attack.has_published_budget:
            basis = f"at equal passes ({excess:+.1f} points)"
        relation = "more than" if excess > TOLERANCE else "at most"
        return f"{basis} the audit is {relation} one point above the paper's attack"


def adaptive(request: Request) -> Result:
    """Audit the adaptive test-time defenses of Croce et al. 2022."""
    notes = [] if request.scale == "tiny" else not_audited(request)
    return run(request, "blind-audit/adaptive", adaptive_cases(request), notes)


def transductive(request: Request) -> Result:
    """Audit the transductive defenses of Chen et al. 2022."""
    cases = transductive_cases(request)
    return run(request, "blind-audit/transductive", cases, TRANSDUCTIVE_NOTES)


def multi_exit(request: Request) -> Result:
    """Audit a multi-exit network with the defender strategies of Xu et al."""
    return run(request, "blind-audit/multi-exit", multi_exit_cases(request))


def equilibrium(request: Request) -> Result:
    """Audit the deep equilibrium networks of Yang et al. 2022."""
    return run(request, "blind-audit/equilibrium", equilibrium_cases(request))


def run(
    request: Request, name: str, cases: Iterator[AuditCase], notes: Sequence[str] = ()
) -> Result:
    """Audit the defenses of one family, one after the other.

    Args:
        request: scale, seed and output folder.
        name: id of the experiment, such as `blind-audit/adaptive`.
        cases: the defenses; they are built lazily, and the scale limits how many are used.
        notes: notes of this family, added to `NOTES`.

    Returns:
        A result with one table that has one row per defense.
    """
    setting = SETTINGS[request.scale]
    runner = Runner(request, 1, _THREADS)
    audited = [
        AuditedCase.run(runner, case, setting.budget)
        for case in islice(cases, setting.max_defenses)
    ]
    title = (
        "Accuracy, %, under the paper's attack and under a blind audit with the budget "
        f"{setting.budget}"
    )
    compared = [one for one in audited if one.excess is not None]
    strong = sum(not one.audit_is_weaker for one in compared)
    return runner.result(
        next(one for one in EXPERIMENTS if one.name == name),
        [Table(title, LABELS, COLUMNS, tuple(one.row() for one in audited), 0, digits=1)],
        notes=(*NOTES, *notes),
        findings=[
            f"{len(compared)} of {len(audited)} audits can be compared with the paper's attack, at "
            f"its published budget or at equal passes; {strong} of these find an accuracy at most "
            "one point above it.",
            *(one.finding() for one in audited),
        ],
        charts=(),
        repeats=1,
    )
