"""A page about a running audit, rewritten into its run folder while the run goes on."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal, NamedTuple

from saddlepoint.audits.cells import AttackCell, Measurement
from saddlepoint.audits.profile import Stage
from saddlepoint.audits.statistics import wilson
from saddlepoint.evaluation import Episode
from saddlepoint.reports.document import (
    document,
    legend,
    muted,
    number_cards,
    percent,
    percent_range,
    save_page,
    table,
)
from saddlepoint.reports.figures import Bar, bars
from saddlepoint.reports.markup import Markup, tag
from saddlepoint.reports.tally import Tally
from saddlepoint.runs.eta import duration
from saddlepoint.runs.store import Store, StoreError
from saddlepoint.runs.work import Work

PAGE = "live.html"
Clock = Callable[[], float]
State = Literal["running", "finished", "stopped"]
_MESSAGES_SHOWN = 5


class LivePage:
    """Writes FOLDER/live.html at most once per `interval` seconds; use it in a `with` statement.

    The page reloads itself at the same interval. It counts all cells in the folder: those finished
    before an interruption and those computed by other processes, too.
    """

    def __init__(
        self, folder: Path, interval: float = 2.0, *, clock: Clock = time.monotonic
    ) -> None:
        """Prepare the page; the first one is written when the run begins.

        Args:
            folder: The run folder.
            interval: Seconds between two pages.
            clock: Returns the time in seconds, for tests.
        """
        self._store = Store(folder)
        self._interval = interval
        self._clock = clock
        self._tally: Tally | None = None
        self._messages: list[str] = []
        self._stage = ""
        self._started = clock()
        self._passes_before = 0  # counted when the run was started or resumed
        self._written = -math.inf  # time of the last page

    def __enter__(self) -> LivePage:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Write the last page, which redirects to the report or says why there is none."""
        if self._tally is None:
            return
        reason = (str(error) or kind.__name__) if kind else ""
        self._load_finished(self._tally)
        self._write(self._tally, "stopped" if kind else "finished", reason)

    def begin(self, work: Work, missing: Sequence[AttackCell]) -> None:  # noqa: ARG002
        """Write the first page of a run that was started or resumed."""
        self._tally = Tally.of(work)
        self._started = self._clock()
        self._load_finished(self._tally)
        self._passes_before = self._tally.passes
        self._write(self._tally, "running")

    def cell(self, cell: AttackCell, episode: Episode) -> None:
        """Count a finished cell, and write a page if the interval has passed."""
        tally = self._tally
        assert tally is not None, "a run begins before its first cell"
        tally.add(cell, episode)
        if self._clock() - self._written >= self._interval:
            self._load_finished(tally)
            self._write(tally, "running")

    def measure(self, missing: Sequence[Measurement]) -> None:
        """Show which diagnostics are running."""
        names = ", ".join(dict.fromkeys(cell.name for cell in missing))
        self.say(f"Diagnostics: {names}.")
        if self._tally is not None:
            self._write(self._tally, "running")

    def stage(self, stage: Stage, message: str) -> None:
        """Show the current stage on the next page."""
        self._stage = f"Stage {stage}: {message} "

    def measured(self, cell: Measurement) -> None:
        """Diagnostics are not counted on the page."""

    def say(self, message: str) -> None:
        """Show a message on the next page."""
        self._messages.append(message)

    def _load_finished(self, tally: Tally) -> None:
        """Count cells that are in the folder but were not reported to this object."""
        for cell in tally.missing():
            if self._store.has(tally.work.keys[cell]):
                try:
                    tally.add(cell, self._store.get(tally.work.keys[cell]))
                except StoreError:
                    continue  # the run itself detects, reports and recomputes a damaged cell

    def _write(self, tally: Tally, state: State, reason: str = "") -> None:
        now = self._clock()
        elapsed = now - self._started
        passes = tally.passes - self._passes_before
        left = elapsed * tally.passes_left() / passes if passes else math.inf
        progress = _Progress(tally, state, reason, elapsed, left, self._messages, self._stage)
        title = f"{tally.work.plan.name}: {state}"
        html = document(title, _body(progress), refresh=self._refresh(state))
        save_page(self._store.folder / PAGE, html)
        self._written = now

    def _refresh(self, state: State) -> str:
        """Return when the page reloads, or where it redirects to."""
        if state == "running":
            return f"{max(math.ceil(self._interval), 1)}"
        report = self._store.folder / "report.html"
        return "0; url=report.html" if state == "finished" and report.is_file() else ""


class _Progress(NamedTuple):
    """What the page shows."""

    tally: Tally
    state: State
    reason: str  # why the run stopped; empty if it did not
    elapsed: float  # seconds since the run was started or resumed
    left: float  # seconds to go; infinite if unknown
    messages: Sequence[str]
    stage: str  # a sentence about the current stage; empty before the first one


def _body(progress: _Progress) -> Markup:
    plan = progress.tally.work.plan
    messages = progress.messages[-_MESSAGES_SHOWN:]
    return tag(
        "main",
        tag("p", "saddlepoint run", class_="brand"),
        tag("h1", plan.name),
        tag("p", str(plan.job.threat), class_="muted"),
        _status(progress),
        tag("h2", "So far"),
        number_cards(_cards(progress), class_="numbers five"),
        *_adversaries(progress.tally),
        *([tag("h2", "Messages"), tag("pre", "\n".join(messages))] if messages else []),
        muted(
            f"Written {time.strftime('%Y-%m-%d %H:%M:%S')}, {duration(progress.elapsed)} after "
            "the run was started or resumed."
        ),
    )


def _status(progress: _Progress) -> Markup:
    heading, text, level = {
        "running": (
            "Running",
            f"{progress.stage}More attacks can only lower the robust accuracy: there is no "
            "verdict yet.",
            "note",
        ),
        "finished": ("Finished", "All cells are finished. The verdict is in the report.", "note"),
        "stopped": ("Stopped", progress.reason, "serious"),
    }[progress.state]
    link = tag("p", tag("a", "Open the report", href="report.html"))
    return tag(
        "div",
        tag("span", heading, class_="label"),
        tag("p", text),
        *([link] if progress.state == "finished" else []),
        class_=f"verdict {level}",
    )


def _cards(progress: _Progress) -> Iterator[tuple[str, str, str]]:
    tally = progress.tally
    unbroken, attacked = tally.unbroken()
    accuracy = "–"
    interval = "no image was attacked yet"
    if attacked:
        accuracy = percent(unbroken / attacked)
        interval = f"95 % interval {percent_range(*wilson(unbroken / attacked, attacked)[:2])}"
    images = len(tally.work.plan.job.x)
    done = len(tally.correct)
    total = len(tally.work.keys)
    left = tally.passes_left()
    rest = f"about {left:,.0f} to go" if math.isfinite(left) else "number to go still unknown"
    yield "robust accuracy so far", accuracy, interval
    yield "images not broken", f"{unbroken:,.0f}", f"of {attacked:,} attacked, {images:,} in all"
    yield "cells done", f"{done:,}", f"of {total:,}; {total - done:,} left"
    yield "passes so far", f"{tally.passes:,}", rest
    elapsed = f"{duration(progress.elapsed)} since the run was started or resumed"
    yield "time left", _time_left(progress), elapsed


def _time_left(progress: _Progress) -> str:
    if progress.state == "finished":
        return "none"
    return duration(progress.left) if math.isfinite(progress.left) else "unknown"


def _adversaries(tally: Tally) -> Iterator[Markup]:
    """Yield the progress and the results by adversary."""
    groups = len(tally.work.plan.job.groups)
    rows = []
    lines = []
    for a, adversary in enumerate(tally.work.plan.adversaries):
        result = tally.against(a)
        rows.append(Bar(adversary.name, result.cells / groups, 0.0, f"{result.cells} of {groups}"))
        lines.append(
            (
                adversary.name,
                percent(result.correct / result.images) if result.images else "–",
                f"{result.images:,}",
                f"{tally.forward.get(a, 0):,}",
                f"{tally.backward.get(a, 0):,}",
            )
        )
    head = ("adversary", "accuracy", "images evaluated", "forward passes", "backward passes")
    chart = bars(rows, title="Cells done by adversary")
    yield tag("h2", "Progress")
    yield tag("div", legend(primary="cells done"), chart, class_="card")
    yield tag("h2", "Results by adversary")
    yield table(head, lines)
