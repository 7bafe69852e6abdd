"""Compares the reports of an evaluator with the truth."""

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
from saddlepoint.phrases import count_of
from saddlepoint.selftests.case import Case, Truth
from saddlepoint.selftests.evaluator import AuditEvaluator, Evaluator, LogitsModule, Report
from saddlepoint.selftests.families import CASES

TOLERANCE = 0.02  # two images of a hundred
Outcome = Literal["right", "too high", "too low", "failed"]


@dataclass(frozen=True)
class Line:
    """The result of one case: the truth and the report of the evaluator."""

    case: str
    truth: Truth
    report: Report | None  # None: the evaluator raised an error
    error: str  # the error, or ""
    seconds: float  # CPU time

    @property
    def outcome(self) -> Outcome:
        """How the report compares with the truth.

        It is "right" within two points of the truth. For a randomized defense it is also right if
        the interval of the evaluator contains the truth.
        """
        if self.report is None:
            return "failed"
        reported = self.report.robust_accuracy
        if self.truth.low - TOLERANCE <= reported <= self.truth.high + TOLERANCE:
            return "right"
        if self.truth.random and self._interval_contains_truth():
            return "right"
        return "too high" if reported > self.truth.high else "too low"

    @property
    def deceived(self) -> bool:
        """Whether the evaluator reports too high a number without a warning.

        A user would believe this number.
        """
        return self.outcome == "too high" and self.report is not None and self.report.holds

    def record(self) -> dict[str, Any]:
        """The result as JSON data."""
        return {**asdict(self), "outcome": self.outcome, "deceived": self.deceived}

    def _interval_contains_truth(self) -> bool:
        if self.report is None or not self.report.interval:
            return False
        low, high = self.report.interval
        return low <= self.truth.high and self.truth.low <= high


@dataclass(frozen=True)
class SelfTest:
    """The results of one evaluator."""

    evaluator: str
    lines: tuple[Line, ...]  # one per case
    versions: dict[str, str]  # of the packages used

    @property
    def right(self) -> int:
        """The number of cases with a correct report."""
        return sum(line.outcome == "right" for line in self.lines)

    @property
    def deceived(self) -> tuple[str, ...]:
        """The cases for which the evaluator reports too high a number without a warning."""
        return tuple(line.case for line in self.lines if line.deceived)

    @property
    def passed(self) -> bool:
        """Whether every report is correct."""
        return self.right == len(self.lines)

    @property
    def seconds(self) -> float:
        """CPU time of all cases."""
        return sum(line.seconds for line in self.lines)

    def summary(self) -> str:
        """The results in one line."""
        missed = ", ".join(self.deceived) or "none"
        return (
            f"{self.evaluator}: {count_of(self.right, len(self.lines), 'case')} right; too high "
            f"without a warning: {missed}. {self.seconds:.0f} s."
        )

    def record(self) -> dict[str, Any]:
        """The results as JSON data."""
        return {
            "evaluator": self.evaluator,
            "versions": self.versions,
            "lines": [line.record() for line in self.lines],
        }

    def __str__(self) -> str:
        width = max(len(line.case) for line in self.lines)
        header = f"{'case':{width}}  {'truth':>6}  {'report':>6}"
        rows = [
            f"{line.case:{width}}  {line.truth!s:>6}  {_reported(line):>6}  {_outcome_text(line)}"
            for line in self.lines
        ]
        return "\n".join([header, *rows, self.summary()])


def selftest(
    evaluator: Evaluator | None = None,
    cases: Sequence[str | Case] = (),
    *,
    progress: Callable[[Line], None] | None = None,
) -> SelfTest:
    """Score an evaluator on defenses with known robust accuracy.

    A report is right within two points of the truth.

    Args:
        evaluator: A function (model, x, y, radius) -> robust accuracy in Linf, or a `Report` with
            an interval and a warning. The model is an `nn.Module` in eval mode from images in
            [0, 1] to logits. Default: `saddlepoint.audit` with the budget "standard".
        cases: Names of cases, or your own cases. Default: all cases.
        progress: Called with the result of each case.

    Raises:
        ValueError: A name is unknown.
    """
    tested = evaluator or AuditEvaluator()
    lines = []
    for case in chosen(cases):
        lines.append(_run_case(tested, case))
        if progress:
            progress(lines[-1])
    name = getattr(tested, "name", getattr(tested, "__name__", type(tested).__name__))
    versions = {
        "saddlepoint": version("saddlepoint"),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    return SelfTest(name, tuple(lines), {**versions, **getattr(tested, "versions", {})})


def chosen(cases: Sequence[str | Case]) -> list[Case]:
    """Look up cases by name; `Case` objects are kept, and an empty sequence means all cases.

    Raises:
        ValueError: A name is unknown.
    """
    known = {case.name: case for case in CASES}
    unknown = [case for case in cases if isinstance(case, str) and case not in known]
    if unknown:
        raise ValueError(f"there is no case {unknown[0]!r}; available: {', '.join(known)}.")
    return [known[case] if isinstance(case, str) else case for case in cases] or list(CASES)


def _run_case(evaluator: Evaluator, case: Case) -> Line:
    problem = case.problem()
    truth = case.truth(problem)
    target: Target = case.defense(problem)
    if not getattr(evaluator, "accepts_targets", False):
        target = LogitsModule(target, len(problem.weight)).eval()
    started = time.process_time()
    report = None
    error = ""
    with torch.random.fork_rng(devices=[]):
        # Defenses that draw from torch's global generator get the same draws with every evaluator
        # that does not use it.
        torch.manual_seed(0)
        try:
            returned = evaluator(target, problem.x.clone(), problem.y.clone(), problem.radius)
            report = returned if isinstance(returned, Report) else Report(float(returned))
        except Exception as failure:  # recorded in the line, so that the other cases still run
            error = describe_error(failure)
    return Line(case.name, truth, report, error, time.process_time() - started)


def _reported(line: Line) -> str:
    return "–" if line.report is None else f"{100 * line.report.robust_accuracy:.1f}"


def _outcome_text(line: Line) -> str:
    if line.report is None:
        return f"failed: {line.error}"
    verdict = f" ({line.report.verdict})" if line.report.verdict else ""
    return ("TOO HIGH WITHOUT A WARNING" if line.deceived else line.outcome) + verdict
