"""The result of an experiment next to the paper's numbers, as plain values that can be saved."""

from __future__ import annotations

import json
import re
import statistics
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from saddlepoint.papers.fingerprint import CodeVersion, digest_of_values
from saddlepoint.schema import Migrations, migrated

SCHEMA = 2
_MACHINE = re.compile(r"time|second|memory|\bms\b|\bkB\b")  # columns that depend on the machine


def _without_verdicts(record: dict[str, Any]) -> dict[str, Any]:
    """Remove verdicts about the paper from findings; pages compare the tables with the paper."""
    verdict = re.compile(r",? (?:as in|contrary to) the paper(?=[.:])")
    return {**record, "findings": [verdict.sub("", text) for text in record["findings"]]}


_MIGRATIONS: Migrations = {1: _without_verdicts}


@dataclass(frozen=True)
class Cell:
    """A measured number."""

    values: tuple[float, ...]  # one per repeat
    paper: float | None = None  # the number that the paper reports
    interval: tuple[float, float] | None = None  # 95 % interval over images
    masked: bool = False  # a weaker attack leaves a lower accuracy, so this one is overstated

    @property
    def mean(self) -> float:
        """Mean over repeats."""
        return statistics.fmean(self.values)

    @property
    def std(self) -> float:
        """Sample standard deviation sqrt(sum (v - mean)^2 / (k - 1)) over k repeats; 0 if k = 1."""
        return statistics.stdev(self.values) if len(self.values) > 1 else 0.0


@dataclass(frozen=True)
class Row:
    """One row of a table."""

    labels: tuple[str, ...]
    cells: tuple[Cell | None, ...]  # None: not measured


@dataclass(frozen=True)
class Table:
    """A table with labeled rows and columns.

    Raises:
        ValueError: if a row does not have one label per label header and one cell per column.
    """

    title: str
    labels: tuple[str, ...]  # headers of the label columns
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    n: int  # images per cell; 0 if cells are not means over a common number of images
    digits: int = 2  # decimal places
    units: str = ""  # how the images are grouped for coupled defenses: "in 4 batches of 128"

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row.labels) != len(self.labels) or len(row.cells) != len(self.columns):
                raise ValueError(
                    f"{self.title}: a row has {len(row.labels)} labels and {len(row.cells)} cells, "
                    f"expected {len(self.labels)} and {len(self.columns)}."
                )

    def cell(self, labels: tuple[str, ...], column: str) -> Cell:
        """Return the cell of this row and column, which must exist."""
        row = next(row for row in self.rows if row.labels == labels)
        cell = row.cells[self.columns.index(column)]
        assert cell is not None, f"{self.title} has no {column} for {labels}"
        return cell


@dataclass(frozen=True)
class HeatMap:
    """A heat map: a matrix of numbers drawn as colors."""

    name: str  # file name without suffix
    title: str
    down: tuple[str, ...]  # row labels
    across: tuple[str, ...]  # column labels
    values: tuple[tuple[float, ...], ...]  # [rows][columns]
    down_title: str = ""
    across_title: str = ""
    kind: Literal["heat"] = "heat"


@dataclass(frozen=True)
class Plot:
    """A scatter plot or line plot of several series."""

    name: str  # file name without suffix
    title: str
    across: str  # label of the x-axis
    up: str  # label of the y-axis
    points: dict[str, tuple[tuple[float, float], ...]]  # (x, y) by series
    joined: bool = False  # connect consecutive points of a series by a line
    kind: Literal["cloud"] = "cloud"


@dataclass(frozen=True)
class Result:
    """The result of one experiment at one scale."""

    experiment: str  # "paper/table-or-figure"
    title: str
    reports: str  # what the paper reports
    scale: str
    seed: int
    repeats: int
    command: str  # reproduces this result
    tables: tuple[Table, ...]
    notes: tuple[str, ...]  # models, data and settings, and where they differ from the paper
    findings: tuple[str, ...]  # conclusions, generated from the numbers
    seconds: float  # run time of all attacks, including those read from the cache
    forward: float  # forward passes of single images
    backward: float  # backward passes of single images
    versions: dict[str, str]
    charts: tuple[HeatMap | Plot, ...] = ()
    symptoms: tuple[str, ...] = ()  # warnings, shown above the numbers
    code: CodeVersion | None = None  # sources that give its numbers; None: older than such entries
    weights: dict[str, str] = field(default_factory=dict)  # SHA-256 by third-party weight file
    not_run: str = ""  # why there are no tables: one sentence with the measured cost

    def record(self) -> dict[str, Any]:
        """Return the result as a dictionary with its schema version."""
        return {"schema": SCHEMA, **asdict(self)}

    def probe(self) -> str:
        """Return a digest of all measured values but those of time and memory, and of margins."""
        tables = [
            [table.title, [[row.labels, _repeatable(table, row)] for row in table.rows]]
            for table in self.tables
        ]
        margins = self.code.margins if self.code else ""
        return digest_of_values(_rounded([self.forward, self.backward, margins, tables]))

    def text(self) -> str:
        """Return the record as JSON with seven significant digits and short values on one line."""
        return _compact(_rounded(self.record())) + "\n"


def read(text: str, place: str) -> Result:
    """Read a result from the text of its record.

    Args:
        text: JSON text written by `Result.text`.
        place: where the text comes from, for error messages.

    Returns:
        The result.

    Raises:
        ValueError: if the text is not a record, or has a schema version that cannot be migrated.
    """
    from pydantic import TypeAdapter, ValidationError

    try:
        record = migrated(json.loads(text), _MIGRATIONS, SCHEMA, place)
        return TypeAdapter(Result).validate_python(record)
    except (json.JSONDecodeError, AttributeError, KeyError, ValidationError) as error:
        raise ValueError(
            f"{place} is not a record of an experiment ({error}). Run the experiment again."
        ) from error


def _repeatable(table: Table, row: Row) -> list[tuple[float, ...]]:
    """Return the values of a row, without those that differ from run to run."""
    return [
        cell.values
        for column, cell in zip(table.columns, row.cells, strict=True)
        if cell is not None and not _MACHINE.search(column)
    ]


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.7g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return value


def _compact(value: Any, indent: int = 0) -> str:
    """Format as JSON: values that fit into 130 columns stay on one line, others are split."""
    flat = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, dict | list) or not value or len(flat) + indent <= 130:
        return flat
    inner = " " * (indent + 1)
    brackets = "{}" if isinstance(value, dict) else "[]"
    if isinstance(value, dict):
        parts = [
            f"{inner}{json.dumps(key, ensure_ascii=False)}: {_compact(item, indent + 1)}"
            for key, item in value.items()
        ]
    else:
        parts = [inner + _compact(item, indent + 1) for item in value]
    return brackets[0] + "\n" + ",\n".join(parts) + "\n" + " " * indent + brackets[1]
