"""How far an audit is, and how long it will take."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

Clock = Callable[[], float]


class Pace:
    """Seconds left: each adversary goes on at the pace it has shown; one not yet seen is taken for the average of the others."""

    def __init__(self, adversaries: tuple[str, ...], examples: int) -> None:
        self._examples = examples
        self._done = dict.fromkeys(adversaries, 0)
        self._seconds = dict.fromkeys(adversaries, 0.0)

    def add(self, adversary: str, examples: int, seconds: float) -> None:
        self._done[adversary] += examples
        self._seconds[adversary] += seconds

    def left(self) -> float:
        rates = {name: self._seconds[name] / done for name, done in self._done.items() if done}
        average = sum(rates.values()) / max(len(rates), 1)
        return sum(rates.get(name, average) * (self._examples - done) for name, done in self._done.items())


class Watching:
    """A bar on a terminal, a line per finished group of images in a log; nothing if not `shown`. Use it as a context."""

    def __init__(self, console: Console, *, title: str = "", shown: bool = True, clock: Clock = time.monotonic) -> None:
        self._console, self._title, self._shown, self._clock = console, title, shown, clock
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), TextColumn("{task.fields[left]}"))
        self._bar = Progress(*columns, console=console, transient=True, disable=not (shown and console.is_terminal))
        self._last = ""
        self._pace = Pace((), 0)
        self._examples = self._group = self._standing = 0
        self._finished = self._survived = 0
        self._task = TaskID(0)
        self._then = clock()

    def __enter__(self) -> Watching:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._bar.stop()

    def plan(self, adversaries: tuple[str, ...], examples: int) -> None:
        self._pace, self._examples, self._last, self._then = Pace(adversaries, examples), examples, adversaries[-1], self._clock()
        self._task = self._bar.add_task(self._title, total=len(adversaries) * examples, left="")

    def advance(self, adversary: str, examples: int, standing: int) -> None:
        now = self._clock()
        self._pace.add(adversary, examples, now - self._then)
        self._then = now
        seen, survived = self._finished + examples, self._survived + standing
        told = f"{self._title} {adversary}: {survived} of {seen} stand".strip()
        left = f"about {duration(self._pace.left())} left"
        self._bar.update(self._task, advance=examples, description=told, left=left)
        if adversary == self._last:
            self._finished, self._survived = seen, survived
            if self._shown and not self._console.is_terminal:
                line = f"{self._title} {seen} of {self._examples} images attacked, {survived} stand, {left}".strip()
                self._console.print(line, markup=False, soft_wrap=True)


def duration(seconds: float) -> str:
    """`42 s`, `3 min 20 s`, `2 h 5 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
