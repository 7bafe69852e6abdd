"""Several watches at once, and watches that receive the result of an audit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from saddlepoint.audits import Audit
from saddlepoint.audits.cells import AttackCell, Measurement
from saddlepoint.audits.profile import Stage
from saddlepoint.evaluation import Episode
from saddlepoint.runs.cache import Watch, report_stage
from saddlepoint.runs.work import Work


@runtime_checkable
class ResultWatch(Protocol):
    """A watch that also receives the result of an audit. Other watches do not."""

    def concluded(self, audit: Audit) -> None:
        """The audit is finished."""


class Watches:
    """Forward the progress of a run to several watches: `Watches((bar, page))`."""

    def __init__(self, watches: Sequence[Watch]) -> None:
        """Forward to each watch in turn; without watches nothing is reported."""
        self._watches = tuple(watches)

    def begin(self, work: Work, missing: Sequence[AttackCell]) -> None:
        """Report the work of the run and the cells that are still missing."""
        for watch in self._watches:
            watch.begin(work, missing)

    def cell(self, cell: AttackCell, episode: Episode) -> None:
        """Report a finished cell."""
        for watch in self._watches:
            watch.cell(cell, episode)

    def measure(self, missing: Sequence[Measurement]) -> None:
        """Report the measurements that are still missing."""
        for watch in self._watches:
            watch.measure(missing)

    def measured(self, cell: Measurement) -> None:
        """Report a finished measurement."""
        for watch in self._watches:
            watch.measured(cell)

    def stage(self, stage: Stage, message: str) -> None:
        """Report a stage to the watches that follow stages."""
        for watch in self._watches:
            report_stage(watch, stage, message)

    def say(self, message: str) -> None:
        """Report a message."""
        for watch in self._watches:
            watch.say(message)

    def concluded(self, audit: Audit) -> None:
        """Report the result to the watches that receive it."""
        for watch in self._watches:
            if isinstance(watch, ResultWatch):
                watch.concluded(audit)


def as_watches(watch: Watch | Sequence[Watch] | None) -> tuple[Watch, ...]:
    """The watches that an argument stands for: none, one or several."""
    if watch is None:
        return ()
    return tuple(watch) if isinstance(watch, Sequence) else (watch,)
