"""What an audit leaves that is told nothing, beside what the attacks of each defense's paper leave, on the same images."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from saddlepoint.audits.planning.suite import Budget
from saddlepoint.audits.result import Audit
from saddlepoint.evaluation.bootstrap import mean_of
from saddlepoint.papers.blind_audit import EXPERIMENTS
from saddlepoint.papers.blind_audit.contests import (
    ASKED,
    DRAWS,
    KNOWN,
    Contest,
    exited,
    learned,
    purified,
    solved,
)
from saddlepoint.papers.deq.experiment import accuracy
from saddlepoint.papers.registry import Request, Scale
from saddlepoint.papers.result import Cell, Result, Row, Table
from saddlepoint.papers.runner import Bench

_THREADS = 1
SLACK = 1.0  # points by which the audit may lie above the paper's attack
LABELS = ("defense", "data", "images", "the paper's attack", "decisive in the audit", "verdict")
COLUMNS = (
    "clean",
    "the paper's attack",
    "audit",
    "audit less the paper's",
    "forward passes",
    "backward passes",
)
NOTES = (
    "the audit gets the defense, the images and the threat model, and composes its attacks from what it measures; the paper's "
    "attack is the strongest of those that the paper has for this defense, at the budget of this scale",
    "an audit counts every image, or every batch of a defense that couples its rows, under the strongest of all it sent; the "
    "paper's attack is one attack",
    "seconds and passes of all attacks together are the audits'; those of the papers' attacks stand in the records of their tables",
    "decisive: the attack that took most of what those before it had left",
)
LEARNED = (
    f"RMC, DANN, TADV and URejectron are judged by {DRAWS} answers, since each trains a network; an audit's own choice is more",
    f"URejectron is asked about {ASKED} images at most and compares them with at most {KNOWN * ASKED} that it knows; a refusal "
    "counts as right",
)


@dataclass(frozen=True)
class Setting:
    """How much of everything."""

    budget: Budget
    first: int | None = None  # so many defenses of an experiment; None: all


SETTINGS: Mapping[Scale, Setting] = {
    "tiny": Setting("quick", 1),
    "small": Setting("standard"),
    "paper": Setting("standard"),
}


@dataclass(frozen=True)
class Met:
    """A defense after its audit."""

    contest: Contest
    audit: Audit

    @classmethod
    def of(cls, bench: Bench, contest: Contest, budget: Budget) -> Met:
        asked = replace(bench, batch=contest.batch)
        name = f"{contest.name} on {contest.data}"
        return cls(
            contest,
            asked.audited(
                contest.defense, contest.images, threat=contest.threat, budget=budget, name=name
            ),
        )

    @property
    def apart(self) -> Cell:
        """Points that the audit leaves above what the paper's attack leaves."""
        found = mean_of(self.audit.correct.double().cpu() - self.contest.left)
        return Cell((100 * found.value,), interval=(100 * found.low, 100 * found.high))

    @property
    def behind(self) -> bool:
        return self.apart.mean > SLACK

    @property
    def decisive(self) -> str:
        return max(self.audit.rows, key=lambda row: row.gain).name if self.audit.rows else "none"

    def row(self) -> Row:
        contest = self.contest
        rows = self.audit.rows
        labels = (
            contest.name, contest.data, str(len(contest.images.x)), contest.strongest, self.decisive,
            self.audit.verdict,
        )  # fmt: skip
        passes = (
            Cell((sum(row.forward for row in rows),)),
            Cell((sum(row.backward for row in rows),)),
        )
        found = (
            accuracy(contest.clean),
            accuracy(contest.left),
            accuracy(self.audit.correct.double().cpu()),
            self.apart,
        )
        return Row(labels, (*found, *passes))

    def told(self) -> str:
        place = (
            "behind the paper's attack"
            if self.behind
            else "at or below the paper's attack and a point"
        )
        assert self.apart.interval is not None
        low, high = self.apart.interval
        apart = f"{self.apart.mean:+.1f} points ({low:+.1f} to {high:+.1f})"
        return f"{self.contest.name}: {place}, {apart} from {self.contest.strongest}."


def adaptive(request: Request) -> Result:
    return run(request, "untold/adaptive", purified(request))


def transductive(request: Request) -> Result:
    return run(request, "untold/transductive", learned(request), LEARNED)


def multi_exit(request: Request) -> Result:
    return run(request, "untold/multi-exit", exited(request))


def equilibrium(request: Request) -> Result:
    return run(request, "untold/equilibrium", solved(request))


def run(
    request: Request, name: str, contests: Iterator[Contest], notes: Sequence[str] = ()
) -> Result:
    """All defenses of a family, one after the other."""
    setting = SETTINGS[request.scale]
    bench = Bench(request, 1, _THREADS)
    met = [Met.of(bench, contest, setting.budget) for contest in islice(contests, setting.first)]
    title = f"Accuracy, %, under the paper's attack and under an audit of the budget {setting.budget} that is told nothing"
    level = sum(not one.behind for one in met)
    return bench.result(
        next(one for one in EXPERIMENTS if one.name == name),
        [Table(title, LABELS, COLUMNS, tuple(one.row() for one in met), 0, digits=1)],
        notes=(*NOTES, *notes),
        findings=[
            f"{level} of {len(met)} audits end at or below the paper's attack and a point.",
            *(one.told() for one in met),
        ],
        charts=(),
        repeats=1,
    )
