"""Progress display of downloads, one row per file, with the interface that pooch expects."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TransferSpeedColumn,
)


class ProgressRow:
    """The progress of one file.

    pooch sets `total`, calls `update` with the size of each chunk, then `reset` and `close`.
    """

    def __init__(self, display: Progress, task: TaskID) -> None:
        self._display = display
        self._task = task
        self._total = 0
        self._done = 0

    @property
    def total(self) -> int:
        """Size of the file in bytes; 0 if unknown."""
        return self._total

    @total.setter
    def total(self, size: int) -> None:
        self._total = size
        # A size of 0 means that the server did not report one.
        self._display.update(self._task, total=size or None)

    def update(self, step: int) -> None:
        """Add `step` bytes to the progress."""
        self._done += step
        self._display.update(self._task, completed=self._done)

    def reset(self) -> None:
        """Set the progress to 0."""
        self._done = 0
        self._display.update(self._task, completed=0)

    def close(self) -> None:
        """Redraw the display a last time."""
        self._display.refresh()


@contextmanager
def progress_rows(visible: bool) -> Iterator[Callable[[str], ProgressRow]]:
    """Open a progress display and yield a function that adds a row for a file name.

    Nothing is printed unless `visible`.
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    with Progress(*columns, disable=not visible) as display:
        yield lambda name: ProgressRow(display, display.add_task(name, total=None))
