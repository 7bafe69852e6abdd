"""How far a run is, and how long it will take."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from saddlepoint.run.pace import Pace, remaining

if TYPE_CHECKING:
    from torch import Tensor

    from saddlepoint.game import Episode
    from saddlepoint.run.work import Cell, Work

Clock = Callable[[], float]


class Watching:
    """A bar on a terminal, a line per cell in a log; nothing if not `shown`. Use it as a context."""

    def __init__(self, console: Console, *, title: str = "", shown: bool = True, clock: Clock = time.monotonic) -> None:
        self._console, self._title, self._shown, self._clock = console, title, shown, clock
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), TextColumn("{task.fields[left]}"))
        self._bar = Progress(*columns, console=console, transient=True, disable=not (shown and console.is_terminal))
        self._names: tuple[str, ...] = ()
        self._pace, self._task, self._started = Pace(()), TaskID(0), clock()
        self._standing: dict[int, Tensor] = {}

    def __enter__(self) -> Watching:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._bar.stop()

    def begin(self, work: Work, missing: Sequence[Cell]) -> None:
        sizes = [len(rows) for rows in work.plan.job.groups]
        self._names, self._started = tuple(a.name for a in work.plan.adversaries), self._clock()
        self._pace = Pace([(adversary, sizes[group]) for group, adversary in missing])
        self._task = self._bar.add_task(self._title, total=sum(sizes[group] for group, _ in missing), left="")
        if len(missing) < len(work.keys):
            self.say(f"{len(work.keys) - len(missing)} of {len(work.keys)} cells are finished already.")

    def cell(self, cell: Cell, episode: Episode) -> None:
        group, adversary = cell
        right = episode.correct[0]
        self._pace.add(adversary, len(right), episode.seconds)
        before = self._standing.get(group)
        self._standing[group] = right if before is None else right.minimum(before)
        standing, seen = sum(float(t.sum()) for t in self._standing.values()), sum(len(t) for t in self._standing.values())
        told = f"{self._title} {self._names[adversary]}: {standing:.0f} of {seen} images stand".strip()
        left = remaining(self._pace.left(self._clock() - self._started))
        self._bar.update(self._task, advance=len(right), description=told, left=left)
        if not self._console.is_terminal:
            self.say(f"{told}, {left}")

    def say(self, message: str) -> None:
        if self._shown:
            self._console.print(message, markup=False, soft_wrap=True)
