"""A page about a run that is still going on, written again and again into its folder."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import torch
from torch import Tensor

from saddlepoint.audits.statistics import wilson
from saddlepoint.evaluation import Episode, OnExamples
from saddlepoint.reports.document import between, document, key, percent, put, quiet, table
from saddlepoint.reports.figures import Bar, bars
from saddlepoint.reports.markup import Markup, tag
from saddlepoint.runs.cache import Watch
from saddlepoint.runs.eta import CLEAN, Pace, duration
from saddlepoint.runs.store import Store, StoreError
from saddlepoint.runs.work import Cell, Work

PAGE = "live.html"
Clock = Callable[[], float]


class Both:
    """Two who watch the same run: `Both(bar, page)`."""

    def __init__(self, first: Watch, second: Watch) -> None:
        self._watches = (first, second)

    def begin(self, work: Work, missing: Sequence[Cell]) -> None:
        for watch in self._watches:
            watch.begin(work, missing)

    def cell(self, cell: Cell, episode: Episode) -> None:
        for watch in self._watches:
            watch.cell(cell, episode)

    def say(self, message: str) -> None:
        for watch in self._watches:
            watch.say(message)


class LivePage:
    """Writes FOLDER/live.html, at most once per `interval` seconds; the page loads itself again as often. Use it as a context.

    It counts what is in the folder, whoever computed it: also before an interruption, also another process.
    """

    def __init__(
        self, folder: Path, interval: float = 2.0, *, clock: Clock = time.monotonic
    ) -> None:
        self._store = Store(folder)
        self._interval = interval
        self._clock = clock
        self._tally: Tally | None = None
        self._told: list[str] = []
        self._started = clock()
        self._before = 0
        self._written = -math.inf

    def __enter__(self) -> LivePage:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """The last page loads itself no more: it leads to the report, or says why there is none."""
        if self._tally is None:
            return
        stopped = f"{error}" or kind.__name__ if kind else ""
        self._look(self._tally)
        self._write(self._tally, "stopped" if kind else "finished", stopped)

    def begin(self, work: Work, missing: Sequence[Cell]) -> None:  # noqa: ARG002
        self._tally, self._started = Tally.of(work), self._clock()
        self._look(self._tally)
        self._before = self._tally.passes
        self._write(self._tally, "running")

    def cell(self, cell: Cell, episode: Episode) -> None:
        tally = self._tally
        assert tally is not None, "a run begins before its first cell"
        tally.add(cell, episode)
        if self._clock() - self._written >= self._interval:
            self._look(tally)
            self._write(tally, "running")

    def say(self, message: str) -> None:
        self._told.append(message)

    def _look(self, tally: Tally) -> None:
        """Take in what others finished."""
        for cell in tally.open():
            if self._store.has(tally.work.keys[cell]):
                try:
                    tally.add(cell, self._store.get(tally.work.keys[cell]))
                except StoreError:
                    continue  # the run itself finds it damaged, says so, and computes it again

    def _write(self, tally: Tally, state: str, stopped: str = "") -> None:
        now = self._clock()
        report = state == "finished" and (self._store.folder / "report.html").is_file()
        refresh = (
            f"{max(math.ceil(self._interval), 1)}"
            if state == "running"
            else "0; url=report.html"
            if report
            else ""
        )
        elapsed = now - self._started
        since = tally.passes - self._before
        rest = elapsed * tally.left() / since if since else math.inf
        body = _body(tally, state, stopped, elapsed, rest, self._told[-5:])
        put(
            self._store.folder / PAGE,
            document(f"{tally.work.plan.name}: {state}", body, refresh=refresh),
        )
        self._written = now


@dataclass
class Tally:
    """What is known so far. The one mutable thing here: it grows with every cell."""

    work: Work
    right: dict[Cell, Tensor]  # [M] per finished cell: share of draws answered rightly
    forward: dict[int, int]  # by adversary
    backward: dict[int, int]
    pace: Pace  # in passes: unlike seconds, they are known of every cell, whoever computed it

    @classmethod
    def of(cls, work: Work) -> Tally:
        sizes = [len(rows) for rows in work.plan.job.groups]
        return cls(work, {}, {}, {}, Pace([(a, sizes[g]) for g, a in work.plan.cells]))

    @property
    def passes(self) -> int:
        return sum(self.forward.values()) + sum(self.backward.values())

    def left(self) -> float:
        """Passes to go, if each adversary goes on as it began; infinite as long as nothing is known."""
        return self.pace.left(self.passes)

    def add(self, cell: Cell, episode: Episode) -> None:
        if cell in self.right:
            return
        adversary = cell[1]
        count = len(episode.size)
        forward = int(episode.forward.sum())
        backward = int(episode.backward.sum())
        self.right[cell] = episode.correct[0].cpu()
        self.forward[adversary] = self.forward.get(adversary, 0) + forward
        self.backward[adversary] = self.backward.get(adversary, 0) + backward
        self.pace.add(adversary, count, forward + backward)

    def open(self) -> list[Cell]:
        return [cell for cell in self.work.plan.cells if cell not in self.right]

    def standing(self) -> tuple[float, int]:
        """Images that stand against the strongest adversary so far, of how many that were attacked.

        Where images are answered together the strongest is chosen for a whole group, as the verdict does.
        """
        groups: dict[int, list[Tensor]] = {}
        attacked = {group for group, adversary in self.right if adversary != CLEAN}
        for (group, _), right in self.right.items():
            groups.setdefault(group, []).append(right)
        alone = self.work.plan.job.defense.unit == "example"
        left = sum(_least(groups[group], alone) for group in attacked)
        return left, sum(len(groups[group][0]) for group in attacked)

    def against(self, adversary: int) -> tuple[float, int, int]:
        """Images that stand against one adversary, of how many it met, in how many cells."""
        sent = self.work.plan.adversaries[adversary]
        groups = self.work.plan.job.groups
        met = {group: right for (group, a), right in self.right.items() if a == adversary}
        chosen = [
            right[torch.isin(groups[group].cpu(), torch.tensor(sent.ids))]
            if isinstance(sent, OnExamples)
            else right
            for group, right in met.items()
        ]
        return (
            sum(float(right.sum()) for right in chosen),
            sum(len(right) for right in chosen),
            len(met),
        )


def _least(tried: list[Tensor], alone: bool) -> float:
    if not alone:
        return min(float(right.sum()) for right in tried)
    least = tried[0]
    for right in tried[1:]:
        least = least.minimum(right)
    return float(least.sum())


def _body(
    tally: Tally, state: str, stopped: str, elapsed: float, rest: float, told: Sequence[str]
) -> Markup:
    plan = tally.work.plan
    heading = {"running": "Still running", "finished": "Finished", "stopped": "Stopped"}[state]
    level = "serious" if state == "stopped" else "note"
    words = {
        "running": "What is left can only shrink: the worst case so far is no verdict yet.",
        "finished": "All cells are there. The report has the verdict.",
        "stopped": stopped,
    }[state]
    link = (
        [tag("p", tag("a", "Go to the report", href="report.html"))] if state == "finished" else []
    )
    return tag(
        "main",
        tag("p", "saddlepoint run", class_="brand"),
        tag("h1", plan.name),
        tag("p", str(plan.job.threat), class_="quiet"),
        tag(
            "div",
            tag("span", heading, class_="label"),
            tag("p", words),
            *link,
            class_=f"verdict {level}",
        ),
        tag("h2", "So far"),
        tag("div", *_cards(tally, state, elapsed, rest), class_="numbers five"),
        *_progress(tally),
        *([tag("h2", "Messages"), tag("pre", "\n".join(told))] if told else []),
        quiet(
            f"Written {time.strftime('%Y-%m-%d %H:%M:%S')}, {duration(elapsed)} after the run went on."
        ),
    )


def _cards(tally: Tally, state: str, elapsed: float, rest: float) -> Iterator[Markup]:
    (standing, seen) = tally.standing()
    done = len(tally.right)
    total = len(tally.work.keys)
    spent = tally.passes
    n = len(tally.work.plan.job.x)
    ahead = tally.left()
    told = (
        f"about {ahead:,.0f} to go"
        if math.isfinite(ahead)
        else "how many are to go is not known yet"
    )
    span = (
        f"95 % interval {between(*wilson(standing / seen, seen)[:2])}"
        if seen
        else "nothing was attacked yet"
    )
    left = "none" if state == "finished" else duration(rest) if math.isfinite(rest) else "unknown"
    cards = (
        ("worst case so far", percent(standing / seen) if seen else "–", span),
        ("images that stand", f"{standing:,.0f}", f"of {seen:,} attacked, {n:,} in all"),
        ("cells done", f"{done:,}", f"of {total:,}; {total - done:,} left"),
        ("passes spent", f"{spent:,}", told),
        ("time left", left, f"{duration(elapsed)} since the run went on"),
    )
    for name, value, text in cards:
        yield tag(
            "div",
            tag("span", name),
            tag("b", value),
            tag("span", text, class_="quiet"),
            class_="card",
        )


def _progress(tally: Tally) -> Iterator[Markup]:
    plan = tally.work.plan
    groups = len(tally.work.plan.job.groups)
    rows = []
    lines = []
    for a, adversary in enumerate(plan.adversaries):
        standing, met, cells = tally.against(a)
        rows.append(Bar(adversary.name, cells / groups, 0.0, f"{cells} of {groups}"))
        passes = (f"{spent.get(a, 0):,}" for spent in (tally.forward, tally.backward))
        lines.append((adversary.name, percent(standing / met) if met else "–", f"{met:,}", *passes))
    yield tag("h2", "Progress")
    yield tag(
        "div", key(kept="cells done"), bars(rows, title="Cells done by adversary"), class_="card"
    )
    yield tag("h2", "By adversary")
    yield table(
        ("adversary", "accuracy against it", "images met", "forward passes", "backward passes"),
        lines,
    )
