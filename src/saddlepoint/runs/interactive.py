"""A progress bar for Python: in terminals and in notebooks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from saddlepoint.audits.cells import AttackCell, Measurement
from saddlepoint.audits.profile import Stage
from saddlepoint.evaluation import Episode
from saddlepoint.phrases import count_of
from saddlepoint.runs.cache import Watch

if TYPE_CHECKING:
    from saddlepoint.runs.work import Work


def in_notebook() -> bool:
    """Whether the code runs in a notebook."""
    shell = sys.modules.get("IPython")
    running = shell.get_ipython() if shell is not None else None
    return running is not None and hasattr(running, "kernel")


@contextmanager
def progress_watch(wanted: bool | None) -> Iterator[tuple[Watch, ...]]:
    """The watch that shows progress, as a tuple of none or one.

    Args:
        wanted: True: always. False: never. None: in terminals and notebooks.
    """
    if wanted is False or (wanted is None and not (in_notebook() or sys.stderr.isatty())):
        yield ()
    elif in_notebook():
        yield (NotebookProgress(),)
    else:
        from rich.console import Console

        from saddlepoint.runs.progress import ProgressBar

        with ProgressBar(Console(stderr=True, highlight=False)) as bar:
            yield (bar,)


class NotebookProgress:
    """One line in a notebook that is replaced as the audit proceeds; removed at its end.

    Args:
        show: displays a text and returns a function that replaces it; default: IPython's display.
    """

    def __init__(self, show: Callable[[str], Callable[[str], None]] | None = None) -> None:
        self._show = show or _ipython_line
        self._replace: Callable[[str], None] | None = None
        self._names: tuple[str, ...] = ()
        self._stage = ""
        self._done = 0
        self._total = 0

    def stage(self, stage: Stage, message: str) -> None:  # noqa: ARG002
        """A stage begins."""
        self._stage = str(stage)
        self._write(self._stage)

    def begin(self, work: Work, missing: Sequence[AttackCell]) -> None:
        """Attack cells are about to be computed."""
        self._names = tuple(adversary.name for adversary in work.plan.adversaries)
        self._start(len(missing))

    def cell(self, cell: AttackCell, episode: Episode) -> None:  # noqa: ARG002
        """An attack cell was computed."""
        self._advance(self._names[cell[1]])

    def measure(self, missing: Sequence[Measurement]) -> None:
        """Measurements are about to be computed."""
        self._start(len(missing))

    def measured(self, cell: Measurement) -> None:
        """A measurement was computed."""
        self._advance(cell.name)

    def say(self, message: str) -> None:
        """Show a message in the line."""
        self._write(message)

    def concluded(self, audit: Any) -> None:  # noqa: ARG002
        """Clear the line: the notebook shows the audit itself."""
        self._write("")

    def _start(self, total: int) -> None:
        self._done = 0
        self._total = total

    def _advance(self, name: str) -> None:
        self._done += 1
        filled = round(20 * self._done / max(self._total, 1))
        bar = "█" * filled + "░" * (20 - filled)
        cells = count_of(self._done, self._total, "cell")
        self._write(f"{self._stage} {bar} {cells}: {name}")

    def _write(self, text: str) -> None:
        if self._replace is None:
            self._replace = self._show(text)
        else:
            self._replace(text)


def _ipython_line(text: str) -> Callable[[str], None]:
    """Display a text in a notebook and return a function that replaces it."""
    from IPython.display import Pretty, display  # type: ignore[import-not-found]

    handle = display(Pretty(text), display_id=True)
    return lambda other: handle.update(Pretty(other))
