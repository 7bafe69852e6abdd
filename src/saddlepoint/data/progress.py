"""Shows downloads: a row per file, in the form that pooch drives."""

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
    """One file. pooch sets `total`, then calls `update` with the bytes of each chunk, `reset` and `close`."""

    def __init__(self, display: Progress, task: TaskID) -> None:
        self._display = display
        self._task = task
        self._total = 0
        self._done = 0

    @property
    def total(self) -> int:
        return self._total

    @total.setter
    def total(self, size: int) -> None:
        self._total = size
        self._display.update(self._task, total=size or None)  # 0: the server does not say

    def update(self, step: int) -> None:
        self._done += step
        self._display.update(self._task, completed=self._done)

    def reset(self) -> None:
        self._done = 0
        self._display.update(self._task, completed=0)

    def close(self) -> None:
        self._display.refresh()


@contextmanager
def progress_rows(shown: bool) -> Iterator[Callable[[str], ProgressRow]]:
    """A function that adds a row under a file's name; nothing is printed unless `shown`."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    with Progress(*columns, disable=not shown) as display:
        yield lambda name: ProgressRow(display, display.add_task(name, total=None))
