"""Shows the progress of a run and estimates the remaining time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from saddlepoint.phrases import agree, at_most, count_of, most_passes, noun_for, percent, printable
from saddlepoint.runs.eta import TimeEstimate, duration, remaining

if TYPE_CHECKING:
    from torch import Tensor

    from saddlepoint.audits.cells import AttackCell, Measurement
    from saddlepoint.audits.profile import Stage
    from saddlepoint.evaluation import Episode
    from saddlepoint.runs.work import Work

Clock = Callable[[], float]  # seconds


class ProgressBar:
    """A progress bar on a terminal, or one line per cell in a log. Use it as a context manager."""

    def __init__(
        self,
        console: Console,
        *,
        title: str = "",
        folder: Path | None = None,
        shown: bool = True,
        messages: bool = False,
        clock: Clock = time.monotonic,
    ) -> None:
        """Prepare the bar.

        Args:
            console: Where to print.
            title: Text before the name of the attack.
            folder: Folder of the run. The accuracy includes cells that are finished there.
            shown: False: print no progress.
            messages: Print messages of the run, such as failures, even without progress.
            clock: Returns the time in seconds.
        """
        self._console = console
        self._title = title
        self._folder = folder
        self._shown = shown
        self._messages = shown or messages
        self._clock = clock
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[left]}", markup=False),
        )
        self._bar = Progress(
            *columns, console=console, transient=True, disable=not (shown and console.is_terminal)
        )
        self._estimate = TimeEstimate(())
        self._task = TaskID(0)
        self._started = clock()
        self._names: tuple[str, ...] = ()
        self._coupled = False
        self._total = 0
        self._finished = 0
        self._measured = 0
        self._to_measure = 0
        self._correct: dict[int, Tensor] = {}  # by group: [N], worst case over the cells so far
        self._counted: set[AttackCell] = set()  # cells that `_correct` includes
        self._stage: Stage | None = None  # the current one
        self._stage_started = clock()
        self._stage_seconds: dict[Stage, float] = {}

    def __enter__(self) -> ProgressBar:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()
        self._end_stage()
        if self._stage_seconds and error is None:
            times = (f"{stage} {_seconds(s)}" for stage, s in self._stage_seconds.items())
            self._line(f"Wall-clock time by stage, with loading and waiting: {', '.join(times)}.")

    def stage(self, stage: Stage, message: str) -> None:
        """Print a line when a stage begins, and measure how long each stage takes."""
        self._end_stage()
        self._stage = stage
        self._line(f"{self._title} {stage}: {message}".strip())

    def begin(self, work: Work, missing: Sequence[AttackCell]) -> None:
        """Start a run, or a further round of it, in which the `missing` cells are computed."""
        for task in self._bar.task_ids:
            self._bar.remove_task(task)  # of the previous round
        sizes = [len(rows) for rows in work.plan.job.groups]
        self._names = tuple(adversary.name for adversary in work.plan.adversaries)
        self._started = self._clock()
        self._coupled = work.plan.job.defense.unit != "example"
        self._total = len(work.keys)
        self._finished = len(work.keys) - len(missing)
        self._estimate = TimeEstimate([(adversary, sizes[group]) for group, adversary in missing])
        self._task = self._bar.add_task(
            self._title, total=sum(sizes[group] for group, _ in missing), left=""
        )
        for remedy in work.remedies:
            self._line(
                f"Remedy: {remedy.name} ({most_passes(remedy.passes)} per remaining image): "
                f"{remedy.reason}."
            )
        if self._finished > len(self._counted):
            done = f"{count_of(self._finished, self._total, 'cell')} "
            self._line(f"{done}{agree(self._finished, 'is', 'are')} finished already.")
        self._read_finished(work, missing)

    def cell(self, cell: AttackCell, episode: Episode) -> None:
        """Show a cell that has just been finished."""
        _, adversary = cell
        correct = episode.correct[0]
        passes = float(episode.forward.sum() + episode.backward.sum())
        self._estimate.add(adversary, len(correct), episode.seconds, passes)
        self._finished += 1
        self._count(cell, correct)
        accuracy = self._accuracy(cell, episode)
        description = f"{self._title} {self._names[adversary]}: {accuracy}".strip()
        left = self._left()
        self._bar.update(self._task, advance=len(correct), description=description, left=left)
        if not self._console.is_terminal:
            self._line(f"{description}; {left}")

    def measure(self, missing: Sequence[Measurement]) -> None:
        """Start a round of diagnostics."""
        for task in self._bar.task_ids:
            self._bar.remove_task(task)  # of the previous round
        self._task = self._bar.add_task(self._title, total=len(missing), left="")
        self._measured = 0
        self._to_measure = len(missing)

    def measured(self, cell: Measurement) -> None:
        """Show a diagnostic that has just been finished."""
        self._measured += 1
        description = f"{self._title} {cell.name}".strip()
        left = f"{self._measured} of {self._to_measure}"
        self._bar.update(self._task, advance=1, description=description, left=left)
        if not self._console.is_terminal:
            self._line(f"{description}; {left}")

    def say(self, message: str) -> None:
        """Print a message of the run above the bar."""
        if self._messages:
            self._console.print(printable(message), markup=False, soft_wrap=True)

    def _line(self, text: str) -> None:
        """Print a line about the progress above the bar."""
        if self._shown:
            self.say(text)

    def _end_stage(self) -> None:
        """Add the time since the last stage began to that stage."""
        now = self._clock()
        if self._stage is not None:
            before = self._stage_seconds.get(self._stage, 0.0)
            self._stage_seconds[self._stage] = before + now - self._stage_started
        self._stage_started = now

    def _read_finished(self, work: Work, missing: Sequence[AttackCell]) -> None:
        """Include the cells of an earlier call in the accuracy."""
        if self._folder is None or not self._shown:
            return
        from saddlepoint.runs.store import Store

        store = Store(self._folder)
        for cell in [cell for cell in work.plan.cells if cell not in {*missing, *self._counted}]:
            self._count(cell, store.get(work.keys[cell]).correct[0])

    def _count(self, cell: AttackCell, correct: Tensor) -> None:
        """Include a cell in the worst case.

        In a coupled batch, the worst case is that of whole batches: a mix of rows from different
        batches was never evaluated.
        """
        self._counted.add(cell)
        group, _ = cell
        before = self._correct.get(group)
        if before is None:
            self._correct[group] = correct
        elif self._coupled:
            self._correct[group] = min(before, correct, key=lambda t: float(t.sum()))
        else:
            self._correct[group] = correct.minimum(before)

    def _accuracy(self, cell: AttackCell, episode: Episode) -> str:  # noqa: ARG002
        """The worst-case accuracy over the cells so far."""
        correct = sum(float(t.sum()) for t in self._correct.values())
        count = sum(len(t) for t in self._correct.values())
        images = count_of(correct, count, "image")
        _, adversary = cell
        if adversary == 0:  # the clean images
            return f"{percent(correct / count)}, {images} classified correctly"
        return f"{at_most(correct / count)}, {images} still robust"

    def _left(self) -> str:
        passes = with_unit(self._estimate.passes)
        rest = self._estimate.passes_left()
        to_come = f", about {with_unit(rest)} to come" if math.isfinite(rest) else ""
        time_left = remaining(self._estimate.left(self._clock() - self._started))
        return (
            f"{count_of(self._finished, self._total, 'cell')}, {passes} "
            f"{noun_for(self._estimate.passes, 'pass')}{to_come}, {time_left}"
        )


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 60 else duration(seconds)


def with_unit(number: float) -> str:
    """`950`, `12.3 thousand`, `4.5 million`."""
    for size, word in ((1e9, "billion"), (1e6, "million"), (1e4, "thousand")):
        if number >= size:
            return f"{number / (1e3 if word == 'thousand' else size):.1f} {word}"
    return f"{number:.0f}"
