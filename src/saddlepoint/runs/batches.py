"""Short cells are given to a worker several at a time, so that messages cost little."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from saddlepoint.audits.cells import Measurement
from saddlepoint.runs.work import Cell

POLL = 0.2  # seconds between two checks of a cell that another process computes
_LARGEST = 128  # cells


class Batches:
    """Cells that wait for a worker.

    How long a cell takes is known from earlier cells of the same attack or measurement. The first
    one is therefore always given alone.

    Args:
        cells: the cells; None means that other processes compute all that are left.
        longest: seconds that the cells of a batch take together, unless it has one cell only. The
            more a message costs, the longer a batch should be; what it costs to stop or to lose a
            worker grows with it.
    """

    def __init__(self, cells: Iterable[Cell | None], longest: float) -> None:
        self._cells = iter(cells)
        self._longest = longest
        self._first: list[Cell] = []  # cells that come before the others
        self._again: list[Cell] = []  # cells that come first, one at a time
        self._deaths: list[Cell] = []  # one entry per worker that a cell has cost
        self._seconds: dict[str | int, float] = {}
        self.blocked = False  # whether other processes compute the cells that are left

    def next(self) -> tuple[Cell, ...]:
        """The next cells to compute together; empty if there are none now."""
        if self._again:
            return (self._again.pop(),)
        batch: list[Cell] = []
        seconds = 0.0
        while len(batch) < _LARGEST and (cell := self._take()) is not None:
            expected = self._seconds.get(_kind(cell), self._longest)
            if batch and seconds + expected > self._longest:
                self._first.append(cell)
                break
            batch.append(cell)
            seconds += expected
        return tuple(batch)

    def finished(self, cell: Cell, seconds: float) -> None:
        """Note how long a cell took."""
        self._seconds[_kind(cell)] = seconds

    def restore(self, cells: Sequence[Cell]) -> None:
        """Compute cells again, each of them alone."""
        self._again += reversed(cells)

    def died(self, cell: Cell) -> int:
        """Note that a worker died during a cell; returns how many died during it so far."""
        self._deaths.append(cell)
        return sum(one is cell for one in self._deaths)

    def _take(self) -> Cell | None:
        if self._first:
            return self._first.pop()
        cell = next(self._cells, _END)
        self.blocked = cell is None
        return None if isinstance(cell, _End) else cell


class _End:
    """The type of the value after the last cell."""


_END = _End()


def _kind(cell: Cell) -> str | int:
    """Cells of the same kind take about as long."""
    return cell.name if isinstance(cell, Measurement) else cell[1]
