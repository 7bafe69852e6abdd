"""Marks accuracies that an attack overstates, because a weaker attack finds a lower one.

A multi-step attack with exact gradients is stronger by design than its first step, than a transfer
attack and than an attack without gradients. Where one of these leaves a lower accuracy, the
gradients are masked, and the number of the multi-step attack is no robust accuracy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from saddlepoint.papers.result import Cell, Row, Table
from saddlepoint.phrases import count, names

_IMAGES = 2  # a difference of at most this many images may be chance


def mark_masked(table: Table, weaker: Mapping[str, Sequence[str]]) -> Table:
    """Mark the cells with a higher accuracy than a cell of the same row under a weaker attack.

    Args:
        table: accuracies in percent; one row per model, one column per attack.
        weaker: by column, the columns of attacks that are weaker by design.

    Returns:
        The table in which `Cell.masked` is set where the difference is more than two images.
    """
    rows = []
    for row in table.rows:
        means = dict(zip(table.columns, row.cells, strict=True))
        cells = tuple(
            cell and replace(cell, masked=_is_masked(cell, means, weaker.get(name, ()), table.n))
            for name, cell in means.items()
        )
        rows.append(replace(row, cells=cells))
    return replace(table, rows=tuple(rows))


def masked_warnings(table: Table, weaker: Mapping[str, Sequence[str]]) -> list[str]:
    """One warning per row with masked cells, with the numbers that show it.

    Args:
        table: a table from `mark_masked`.
        weaker: as in `mark_masked`.
    """
    sentences = []
    for row in table.rows:
        columns = masked_columns(table, row)
        if columns:
            cells = dict(zip(table.columns, row.cells, strict=True))
            witnesses = [name for column in columns for name in weaker[column]]
            lowest = min(witnesses, key=lambda name: _mean(cells[name]))
            sentences.append(
                f"{', '.join(row.labels)}: gradients are masked. "
                f"{_numbers(columns, cells)}, but {_numbers([lowest], cells)}, which is weaker by "
                f"design. {count(len(columns), 'cell')} of this row overstate the robust accuracy."
            )
    return sentences


def masked_columns(table: Table, row: Row) -> list[str]:
    """The columns of the masked cells of a row."""
    pairs = zip(table.columns, row.cells, strict=True)
    return [name for name, cell in pairs if cell is not None and cell.masked]


def _is_masked(cell: Cell, cells: Mapping[str, Cell | None], weaker: Sequence[str], n: int) -> bool:
    margin = 100 * _IMAGES / n
    return any(_mean(cells.get(name)) < cell.mean - margin - 1e-9 for name in weaker)


def _mean(cell: Cell | None) -> float:
    return float("inf") if cell is None else cell.mean


def _numbers(columns: Sequence[str], cells: Mapping[str, Cell | None]) -> str:
    return names([f"{name} leaves {_mean(cells[name]):.1f} %" for name in columns])
