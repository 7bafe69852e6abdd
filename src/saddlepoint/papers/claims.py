"""Claims of the papers, and what our records say about them.

A claim names cells of a record. Its verdict is computed from the record alone; see `verdicts`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from saddlepoint.papers.result import Cell, Result, Row, Table

_FIXED_SET = re.compile(r"\d+(\+\d+)*")  # exits that answer: "4+5"; a mixed strategy: "5 sets"


@dataclass(frozen=True)
class CellReference:
    """A cell of a result."""

    table: int  # index in `Result.tables`; -1: the last one
    labels: tuple[str, ...]  # the first labels of its row; the last may be abbreviated: "Early"
    column: str

    def find(self, result: Result) -> tuple[Table, Row, Cell]:
        """Return table, row and cell.

        Raises:
            ValueError: if the result has no such cell.
        """
        if self.table < len(result.tables) and self.column in result.tables[self.table].columns:
            table = result.tables[self.table]
            rows = [row for row in table.rows if self._is_start(row.labels)]
            rows.sort(key=lambda row: row.labels[: len(self.labels)] != self.labels)
            for row in rows[:1]:
                cell = row.cells[table.columns.index(self.column)]
                if cell is not None:
                    return table, row, cell
        raise ValueError(
            f"{result.experiment} at scale {result.scale} has no cell {self.column!r} of "
            f"{', '.join(self.labels)} in table {self.table}. Change the reference or rerun."
        )

    def _is_start(self, labels: tuple[str, ...]) -> bool:
        *whole, last = self.labels
        return list(labels[: len(whole)]) == whole and labels[len(whole)].startswith(last)


@dataclass(frozen=True)
class Premise:
    """A condition under which the paper makes a claim.

    It is met if the number of a cell is at least the given one; without a cell it is not met.
    """

    unmet: str  # what holds instead; "{:.2g}" is replaced by the number of the cell
    cell: CellReference | None = None
    least: float = 0.0

    def reason(self, result: Result) -> str:
        """Return why the premise is not met; empty if it is met."""
        if self.cell is None:
            return self.unmet
        value = self.cell.find(result)[2].mean
        return "" if value >= self.least else self.unmet.format(value)


@dataclass(frozen=True)
class Strategies:
    """Two strategies that a claim compares: rows of a table whose second label has their exits."""

    first: CellReference
    second: CellReference

    def reason(self, result: Result) -> str:
        """Return that both are the same fixed set of exits; empty if they are not."""
        exits = {one.find(result)[1].labels[1] for one in (self.first, self.second)}
        (only, *others) = exits
        return "" if others or not _FIXED_SET.fullmatch(only) else f"both are exits {only}"


@dataclass(frozen=True)
class Claim:
    """A statement about robustness, and the cells that decide it.

    The effect is the first cell, or the first minus the second. What is expected of it:

    - "positive" or "negative": its sign. The effect is shown positive in the direction of the
      claim.
    - "zero": no effect.
    - "published": an accuracy, the paper's number in the cell. "at most": the same or a lower
      accuracy, as under an attack that is said to break a defense.
    - "never": the first cell counts exceptions to the claim, of which there are none; the second
      cell has the number of cases.
    """

    claim: str  # one sentence
    record: str  # path in the folder of records without suffix: "multi-exit/seven-exits-real"
    first: CellReference
    network: str
    data: str
    second: CellReference | None = None
    expected: Literal["positive", "negative", "zero", "published", "at most", "never"] = "positive"
    base: CellReference | None = None  # clean accuracy of the base network
    ours: bool = False  # no paper makes this claim
    premise: Premise | None = None
    strategies: Strategies | None = None
    published: float | None = None  # the paper's effect, in the claim's direction; None: see cells
    comparable: bool = True  # the paper's numbers in its cells are about this claim
    share: float = 1.0  # of the images of the table that its cells are about
    quotes: tuple[str, ...] = ()  # regular expressions; what they match in the notes is shown

    @property
    def is_level(self) -> bool:
        """Whether the effect is an accuracy that is compared with the published one."""
        return self.expected in ("published", "at most")

    @property
    def references(self) -> tuple[CellReference, ...]:
        """The cells that decide the claim."""
        return (self.first,) if self.second is None else (self.first, self.second)
