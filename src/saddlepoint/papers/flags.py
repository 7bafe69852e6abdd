"""Flags in tables: few images, and base networks with a low clean accuracy."""

from __future__ import annotations

import re
from collections.abc import Iterator

from saddlepoint.papers.result import Result, Row, Table
from saddlepoint.phrases import count

FEWEST = 64  # images; fewer are flagged
# Clean accuracy in percent below which a base network is flagged, by a part of the data's name.
LEAST_CLEAN = {"cifar10": 70.0, "mnist": 95.0}
READING = (
    f"A row is flagged if it has fewer than {FEWEST} images, or if its network has a clean "
    f"accuracy below {LEAST_CLEAN['cifar10']:.0f} % on CIFAR-10 or {LEAST_CLEAN['mnist']:.0f} % on "
    "MNIST."
)
_BASE_ROW = "clean, static"  # in tables whose rows are attacks
# The first pattern that a column of the table matches names the clean accuracy of the base.
_BASE_COLUMNS = (r"static, clean", r"clean(, %)?", r".*, clean")
_STAGES = ("exit", "state")  # labels of tables whose rows are stages of one network


def row_flags(result: Result) -> list[list[str]]:
    """Return the flags of all rows of all tables, one list per table with one text per row."""
    return [
        ["; ".join(_flags(result, table, row)) for row in table.rows] for table in result.tables
    ]


def image_count(table: Table, row: Row) -> int:
    """Images of a row: those of the table, a label "3 of 64", or the label under "images".

    Returns:
        The number of images; 0 if it is not known, or if a row has no accuracies over images.
    """
    if table.n:
        return table.n
    if "images" in table.labels:
        return int(row.labels[table.labels.index("images")])
    found = [match for label in row.labels if (match := re.fullmatch(r"\d+ of (\d+)", label))]
    return int(found[0][1]) if found else 0


def too_few(images: int) -> bool:
    """Whether a known number of images is flagged."""
    return 0 < images < FEWEST


def least_clean(data: str) -> float:
    """Return the clean accuracy in percent below which a network on this data is flagged."""
    return next((least for name, least in LEAST_CLEAN.items() if name in data), 0.0)


def _flags(result: Result, table: Table, row: Row) -> Iterator[str]:
    images = image_count(table, row)
    if too_few(images):
        yield count(images, "image")
    data = _data(result, table, row)
    clean = _clean(table, row)
    if clean is None:  # the highest one on the same data in the record
        others = [
            value
            for other in result.tables
            for one in other.rows
            if _data(result, other, one) == data and (value := _clean(other, one)) is not None
        ]
        clean = max(others, default=None)
    if clean is not None and clean < least_clean(data):
        yield f"{clean:.1f} % clean"


def _data(result: Result, table: Table, row: Row) -> str:
    """Return the data set of a row, from labels, title or notes; empty if none of these names one.

    Notes may name several: those of a table without labels begin with the first network.
    """
    texts = (*row.labels, table.title, *result.notes)
    return next((name for text in texts for name in LEAST_CLEAN if name in text), "")


def _clean(table: Table, row: Row) -> float | None:
    """Return the clean accuracy of the base network of a row in percent; None if not in it."""
    attacks = [one for one in table.rows if one.labels[0] == _BASE_ROW]
    if attacks and (cell := attacks[0].cells[0]) is not None:
        return cell.mean
    source = table.rows[-1] if table.labels[0] in _STAGES else row
    for pattern in _BASE_COLUMNS:
        found = [
            cell.mean
            for column, cell in zip(table.columns, source.cells, strict=True)
            if cell is not None and re.fullmatch(pattern, column)
        ]
        if found:
            return min(found)
    return None
