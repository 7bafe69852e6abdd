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
    "forward passes",
    "backward passes",
)
NOTES = (
    "the audit receives only the defense, the images and the threat model, and selects its attacks "
    "from what it measures; the paper's attack is the strongest of the paper's attacks on this "
    "defense, run with the budget of this scale",
    "the audit's accuracy is the worst case over all its attacks, per image, or per batch if the "
    "defense couples the images of a batch; the paper's attack is a single attack",
    "the passes in the table are per image; the total seconds and passes are those of the audits; "
    "the cost of the papers' attacks is in the records of the papers' own tables",
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
        found = mean_of(self.audit.correct.double().cpu() - self.case.correct_under_strongest)
        return Cell((100 * found.value,), interval=(100 * found.low, 100 * found.high))

    @property
    def audit_is_weaker(self) -> bool:
        """Whether the audit's accuracy exceeds that of the paper's attack by over `TOLERANCE`."""
        return self.difference.mean > TOLERANCE

    @property
    def decisive(self) -> str:
        """Name of the attack that lowered the audit's running worst case the most."""
        return max(self.audit.rows, key=lambda row: row.gain).name if self.audit.rows else "none"

    def row(self) -> Row:
        """Row of this defense in the table, with `LABELS` and `COLUMNS`."""
        case = self.case
        attacks = self.audit.rows
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
            accuracy_cell(case.correct_under_strongest),
            accuracy_cell(self.audit.correct.double().cpu()),
            self.difference,
            Cell((sum(attack.forward for attack in attacks),)),
            Cell((sum(attack.backward for attack in attacks),)),
        )
        return Row(labels, cells)

    def finding(self) -> str:
        """One sentence that compares the audit with the paper's attack."""
        relation = (
            "more than one point above the paper's attack"
            if self.audit_is_weaker
            else "at most one point above the paper's attack"
        )
        difference = self.difference
        assert difference.interval is not None
        low, high = difference.interval
        points = f"{difference.mean:+.1f} points ({low:+.1f} to {high:+.1f})"
        return (
            f"{self.case.name}: the audit's accuracy is {relation}, {points} relative to "
            f"{self.case.strongest}."
        )


def adaptive(request: Request) -> Result:
    """Audit the adaptive test-time defenses of Croce et al. 2022."""
    return run(request, "blind-audit/adaptive", adaptive_cases(request))


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
    strong = sum(not one.audit_is_weaker for one in audited)
    return runner.result(
        next(one for one in EXPERIMENTS if one.name == name),
        [Table(title, LABELS, COLUMNS, tuple(one.row() for one in audited), 0, digits=1)],
        notes=(*NOTES, *notes),
        findings=[
            f"{strong} of {len(audited)} audits find an accuracy at most one point above the "
            "paper's attack.",
            *(one.finding() for one in audited),
        ],
        charts=(),
        repeats=1,
    )
