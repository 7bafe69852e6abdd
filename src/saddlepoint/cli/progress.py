"""How far a run is, and how long it will take."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from saddlepoint.cli.console import percent
from saddlepoint.runs.eta import Pace, remaining

if TYPE_CHECKING:
    from torch import Tensor

    from saddlepoint.evaluation import Episode
    from saddlepoint.runs.work import Cell, Work

Clock = Callable[[], float]


class Watching:
    """A bar on a terminal, a line per cell in a log; nothing if not `shown`. Use it as a context."""

    def __init__(
        self,
        console: Console,
        *,
        title: str = "",
        folder: Path | None = None,
        shown: bool = True,
        clock: Clock = time.monotonic,
    ) -> None:
        """`folder`: where the run is kept; what it holds already counts for where the images stand."""
        self._console = console
        self._title = title
        self._folder = folder
        self._shown = shown
        self._clock = clock
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[left]}", markup=False),
        )
        self._bar = Progress(
            *columns, console=console, transient=True, disable=not (shown and console.is_terminal)
        )
        self._pace = Pace(())
        self._task = TaskID(0)
        self._started = clock()
        self._names: tuple[str, ...] = ()
        self._together = False
        self._total = 0
        self._finished = 0
        self._standing: dict[int, Tensor] = {}
        self._known: set[Cell] = set()  # cells that count for where the images stand

    def __enter__(self) -> Watching:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def begin(self, work: Work, missing: Sequence[Cell]) -> None:
        """A run begins, or a further round of it."""
        for task in self._bar.task_ids:
            self._bar.remove_task(task)  # of the round before
        sizes = [len(rows) for rows in work.plan.job.groups]
        self._names, self._started = tuple(a.name for a in work.plan.adversaries), self._clock()
        self._together = work.plan.job.defense.unit != "example"
        self._total = len(work.keys)
        self._finished = len(work.keys) - len(missing)
        self._pace = Pace([(adversary, sizes[group]) for group, adversary in missing])
        self._task = self._bar.add_task(
            self._title, total=sum(sizes[group] for group, _ in missing), left=""
        )
        for remedy in work.remedies:
            self.say(
                f"Remedy: {remedy.name} (at most {remedy.passes} passes per image that stands): {remedy.reason}."
            )
        if self._finished > len(self._known):
            self.say(f"{self._finished} of {self._total} cells are finished already.")
        self._recall(work, missing)

    def cell(self, cell: Cell, episode: Episode) -> None:
        group, adversary = cell
        right = episode.correct[0]
        passes = float(episode.forward.sum() + episode.backward.sum())
        self._pace.add(adversary, len(right), episode.seconds, passes)
        self._finished += 1
        self._known.add(cell)
        self._stand(group, right)
        told = f"{self._title} {self._names[adversary]}: {self._standing_of(episode)}".strip()
        left = self._left()
        self._bar.update(self._task, advance=len(right), description=told, left=left)
        if not self._console.is_terminal:
            self.say(f"{told}; {left}")

    def say(self, message: str) -> None:
        if self._shown:
            self._console.print(message, markup=False, soft_wrap=True)

    def _recall(self, work: Work, missing: Sequence[Cell]) -> None:
        if self._folder is None or not self._shown:
            return
        from saddlepoint.runs.store import Store

        for cell in [cell for cell in work.plan.cells if cell not in {*missing, *self._known}]:
            self._known.add(cell)
            self._stand(cell[0], Store(self._folder).get(work.keys[cell]).correct[0])

    def _stand(self, group: int, right: Tensor) -> None:
        """Images that are answered together fall together: the worst of whole groups, never a mosaic of rows."""
        before = self._standing.get(group)
        if before is None:
            self._standing[group] = right
        elif self._together:
            self._standing[group] = min(before, right, key=lambda t: float(t.sum()))
        else:
            self._standing[group] = right.minimum(before)

    def _standing_of(self, episode: Episode) -> str:  # noqa: ARG002
        """Where the images stand after one more cell."""
        standing = sum(float(t.sum()) for t in self._standing.values())
        seen = sum(len(t) for t in self._standing.values())
        return f"at most {percent(standing / seen)}, {standing:.0f} of {seen} images stand"

    def _left(self) -> str:
        passes = count(self._pace.passes)
        rest = self._pace.passes_left()
        coming = f", about {count(rest)} to come" if math.isfinite(rest) else ""
        time_left = remaining(self._pace.left(self._clock() - self._started))
        return f"{self._finished} of {self._total} cells, {passes} passes{coming}, {time_left}"


class Rounds(Watching):
    """How far a game is: rounds of attacks, each told of when it begins. Accuracies are of the column that did best and worst."""

    def begin(self, work: Work, missing: Sequence[Cell]) -> None:
        self._known = set()  # the cells of every round are counted anew
        super().begin(work, missing)

    def _standing_of(self, episode: Episode) -> str:
        accuracy = episode.correct.mean(1)
        return (
            f"columns keep {percent(float(accuracy.amin()))} to {percent(float(accuracy.amax()))}"
        )


def count(number: float) -> str:
    """`950`, `12.3 thousand`, `4.5 million`."""
    for size, word in ((1e9, "billion"), (1e6, "million"), (1e4, "thousand")):
        if number >= size:
            return f"{number / (1e3 if word == 'thousand' else size):.1f} {word}"
    return f"{number:.0f}"
