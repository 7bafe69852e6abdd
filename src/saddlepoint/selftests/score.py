"""An evaluator's reports against the truth."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any, Literal

import torch

from saddlepoint.audits import Target
from saddlepoint.locate import describe_error
from saddlepoint.selftests.case import Case, Truth
from saddlepoint.selftests.evaluator import Audited, Evaluator, Opaque, Report
from saddlepoint.selftests.families import CASES

TOLERANCE = 0.02  # two images of a hundred
Outcome = Literal["right", "too high", "too low", "failed"]


@dataclass(frozen=True)
class Line:
    """One case: the truth, the report, and what that is worth."""

    case: str
    truth: Truth
    report: Report | None  # None: the evaluator raised an error
    error: str
    seconds: float  # of the processor

    @property
    def outcome(self) -> Outcome:
        """Right within two points; of a random defense, also if the evaluator's interval holds the truth."""
        if self.report is None:
            return "failed"
        reported = self.report.robust_accuracy
        interval = self.report.interval
        if self.truth.low - TOLERANCE <= reported <= self.truth.high + TOLERANCE:
            return "right"
        if (
            self.truth.random
            and interval
            and interval[0] <= self.truth.high
            and self.truth.low <= interval[1]
        ):
            return "right"
        return "too high" if reported > self.truth.high else "too low"

    @property
    def deceived(self) -> bool:
        """Too high a number that the evaluator stands by: what a user would believe."""
        return self.outcome == "too high" and self.report is not None and self.report.holds

    def record(self) -> dict[str, Any]:
        return {**asdict(self), "outcome": self.outcome, "deceived": self.deceived}


@dataclass(frozen=True)
class SelfTest:
    """All lines of one evaluator."""

    evaluator: str
    lines: tuple[Line, ...]
    versions: dict[str, str]

    @property
    def right(self) -> int:
        return sum(line.outcome == "right" for line in self.lines)

    @property
    def deceived(self) -> tuple[str, ...]:
        """Cases in which the evaluator stands by a number that is too high."""
        return tuple(line.case for line in self.lines if line.deceived)

    @property
    def passed(self) -> bool:
        return self.right == len(self.lines)

    @property
    def seconds(self) -> float:
        return sum(line.seconds for line in self.lines)

    def summary(self) -> str:
        """One sentence."""
        wrong = ", ".join(self.deceived) or "none"
        return f"{self.evaluator}: {self.right} of {len(self.lines)} right; deceived by: {wrong}. {self.seconds:.0f} s."

    def record(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "evaluator": self.evaluator,
            "versions": self.versions,
            "lines": [line.record() for line in self.lines],
        }

    def __str__(self) -> str:
        width = max(len(line.case) for line in self.lines)
        rows = [
            f"{line.case:{width}}  {line.truth!s:>6}  {_reported(line):>6}  {_told(line)}"
            for line in self.lines
        ]
        return "\n".join([f"{'case':{width}}  {'truth':>6}  {'said':>6}", *rows, self.summary()])


def selftest(
    evaluator: Evaluator | None = None,
    cases: Sequence[str | Case] = (),
    *,
    progress: Callable[[Line], None] | None = None,
) -> SelfTest:
    """How an evaluator does on defenses whose robust accuracy is known; without one, how `saddlepoint.audit` does at "standard".

    An evaluator is a function (model, x, y, radius) -> robust accuracy in Linf, or a `Report` that may say that the number is not
    to be trusted. The model is an `nn.Module` in eval mode that maps images in [0, 1] to logits. `cases` are names, or cases of
    your own; without them, all. A line is right within two points of the truth.
    """
    asked = evaluator or Audited()
    lines = []
    for case in chosen(cases):
        lines.append(_line(asked, case))
        if progress:
            progress(lines[-1])
    name = getattr(asked, "name", getattr(asked, "__name__", type(asked).__name__))
    versions = {
        "saddlepoint": version("saddlepoint"),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    return SelfTest(name, tuple(lines), {**versions, **getattr(asked, "versions", {})})


def chosen(cases: Sequence[str | Case]) -> list[Case]:
    """Cases by name, or as they are; all of them if none are named."""
    known = {case.name: case for case in CASES}
    unknown = [case for case in cases if isinstance(case, str) and case not in known]
    if unknown:
        raise ValueError(f"there is no case {unknown[0]!r}; there are: {', '.join(known)}.")
    return [known[case] if isinstance(case, str) else case for case in cases] or list(CASES)


def _line(evaluator: Evaluator, case: Case) -> Line:
    problem = case.problem()
    truth = case.truth(problem)
    target = case.defense(problem)
    handed: Target = (
        target
        if getattr(evaluator, "takes", "") == "targets"
        else Opaque(target, len(problem.weight)).eval()
    )
    started = time.process_time()
    report = None
    error = ""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(
            0
        )  # defenses that draw from torch's own generator draw the same for every evaluator that does not
        try:
            said = evaluator(handed, problem.x.clone(), problem.y.clone(), problem.radius)
            report = said if isinstance(said, Report) else Report(float(said))
        except Exception as failure:  # one that cannot evaluate a case says so in its line, and goes on with the others
            error = describe_error(failure)
    return Line(case.name, truth, report, error, time.process_time() - started)


def _reported(line: Line) -> str:
    return "–" if line.report is None else f"{100 * line.report.robust_accuracy:.1f}"


def _told(line: Line) -> str:
    if line.report is None:
        return f"failed: {line.error}"
    verdict = f" ({line.report.verdict})" if line.report.verdict else ""
    return ("DECEIVED" if line.deceived else line.outcome) + verdict
