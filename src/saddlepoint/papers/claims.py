"""Claims of the papers, and whether our records confirm them.

A claim names cells of a record. Its verdict is computed from their numbers alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from saddlepoint.papers.comparison import Measured
from saddlepoint.papers.flags import FEWEST, image_count, least_clean, too_few
from saddlepoint.papers.result import Cell, Result, Row, Table


class Verdict(StrEnum):
    """Whether a claim was confirmed; the value is the text."""

    CONFIRMED = "confirmed"
    NOT_CONFIRMED = "not confirmed"
    CONTRADICTED = "contradicted"


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
class Claim:
    """A statement about robustness, and the cells that decide it.

    The effect is the first cell, or the first minus the second, with the opposite sign if it is
    expected to be negative: it is positive in the direction of the claim. With
    `expected="published"` the effect is a level, which is compared with the paper's number in the
    cell; with `"at most"` it may also be below, as the accuracy under an attack that is said to
    break a defense.
    """

    claim: str  # one sentence
    record: str  # path in the folder of records without suffix: "multi-exit/seven-exits-real"
    first: CellReference
    network: str
    data: str
    second: CellReference | None = None
    expected: Literal["positive", "negative", "published", "at most"] = "positive"
    base: CellReference | None = None  # clean accuracy of the base network
    ours: bool = False  # no paper makes this claim

    @property
    def is_level(self) -> bool:
        """Whether the effect is an accuracy that is compared with the published one."""
        return self.expected in ("published", "at most")


@dataclass(frozen=True)
class Decided:
    """A claim with what a record says about it."""

    claim: Claim
    effect: Measured
    verdict: Verdict
    images: int  # 0: not known
    flags: tuple[str, ...]  # reasons to doubt it
    published: float | None  # the paper's number for the effect


def decide(claim: Claim, result: Result) -> Decided:
    """Decide a claim.

    Args:
        claim: the claim.
        result: the record that it names.

    Returns:
        Confirmed if the 95 % interval of the effect is above zero, or, for a published level,
        contains it or is allowed to be below it; contradicted if it is below zero, or off the
        level; not confirmed otherwise.
    """
    table, row, cell = claim.first.find(result)
    effect = _measured(table, row, cell)
    published = cell.paper
    images = image_count(table, row)
    if claim.second is not None:
        other_table, other_row, other = claim.second.find(result)
        effect = effect.minus(_measured(other_table, other_row, other))
        images = min(images, image_count(other_table, other_row))
        pair = (published, other.paper)
        published = None if pair[0] is None or pair[1] is None else pair[0] - pair[1]
    if claim.expected == "negative":
        effect = Measured(0 - effect.value, 0 - effect.high, 0 - effect.low)  # no -0.0
        published = None if published is None else 0 - published
    verdict = _verdict(claim, effect, published)
    flags = _flags(claim, result, images)
    if effect.low == effect.high == 0:
        flags = (*flags, "equal on every image")
    return Decided(claim, effect, verdict, images, flags, published)


def _verdict(claim: Claim, effect: Measured, published: float | None) -> Verdict:
    if claim.is_level:
        assert published is not None, f"{claim.record} has no published number for {claim.claim}"
        below = effect.high < published
        found = claim.expected == "at most" if below else effect.low <= published
        return Verdict.CONFIRMED if found else Verdict.CONTRADICTED
    if effect.low > 0:
        return Verdict.CONFIRMED
    return Verdict.CONTRADICTED if effect.high < 0 else Verdict.NOT_CONFIRMED


def _measured(table: Table, row: Row, cell: Cell) -> Measured:
    images = image_count(table, row)
    if cell.interval or not images:
        return Measured.of(cell)
    alone = Table("", ("",), ("",), (Row(("",), (cell,)),), images)
    return Measured.accuracy(alone, ("",), "")


def _flags(claim: Claim, result: Result, images: int) -> tuple[str, ...]:
    flags = []
    if too_few(images):
        flags.append(f"fewer than {FEWEST} images")
    if any(ref.find(result)[2].masked for ref in (claim.first, claim.second) if ref is not None):
        flags.append("masked gradients")
    if claim.base is not None:
        clean = claim.base.find(result)[2].mean
        if clean < least_clean(claim.data):
            flags.append(f"base network {clean:.1f} % clean")
    return tuple(flags)
