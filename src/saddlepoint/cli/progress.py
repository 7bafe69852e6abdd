"""How far a run is, and how long it will take."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

if TYPE_CHECKING:
    from torch import Tensor

    from saddlepoint.game import Episode
    from saddlepoint.run.work import Cell, Work

Clock = Callable[[], float]
_CLEAN = 0  # the clean images are the first adversary of every plan


class Pace:
    """How long the rest takes, if each adversary goes on as it began; one not yet seen is taken for the average of the others.

    left = elapsed * (work left) / (work done), work in seconds of one worker: it holds for any number of workers.
    """

    def __init__(self, examples: Sequence[tuple[int, int]]) -> None:
        """`examples`: the adversary and the number of images of every cell that is to come."""
        self._left: dict[int, int] = {}
        for adversary, count in examples:
            self._left[adversary] = self._left.get(adversary, 0) + count
        self._done: dict[int, int] = {}
        self._spent: dict[int, float] = {}

    def add(self, adversary: int, count: int, seconds: float) -> None:
        self._left[adversary] = self._left.get(adversary, 0) - count
        self._done[adversary] = self._done.get(adversary, 0) + count
        self._spent[adversary] = self._spent.get(adversary, 0.0) + seconds

    def left(self, elapsed: float) -> float:
        """In seconds; infinite as long as nothing but the clean images, which tell nothing about attacks, has been seen."""
        rates = {a: self._spent[a] / done for a, done in self._done.items() if a != _CLEAN}
        if not rates or not sum(self._spent.values()):
            return math.inf if any(self._left.values()) else 0.0
        average = sum(rates.values()) / len(rates)
        rest = sum(rates.get(a, average) * count for a, count in self._left.items() if a != _CLEAN)
        return elapsed * rest / sum(self._spent.values())


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


def remaining(seconds: float) -> str:
    return f"about {duration(seconds)} left" if math.isfinite(seconds) else "time left unknown"


def duration(seconds: float) -> str:
    """`42 s`, `3 min 20 s`, `2 h 5 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
