"""What an experiment found, beside what the paper reports: plain values that a record keeps and a page is written from."""

from __future__ import annotations

import json
import statistics
from dataclasses import asdict, dataclass
from typing import Any, Literal

from saddlepoint.schema import Migrations, migrated

SCHEMA = 1
_MIGRATIONS: Migrations = {}


@dataclass(frozen=True)
class Cell:
    """A number, found once per repeat; `interval` is where it would lie on other images."""

    values: tuple[float, ...]
    paper: float | None = None
    interval: tuple[float, float] | None = None

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)

    @property
    def std(self) -> float:
        """Of a sample: sqrt(sum (v - mean)^2 / (k - 1)) over k repeats; 0 for one."""
        return statistics.stdev(self.values) if len(self.values) > 1 else 0.0


@dataclass(frozen=True)
class Row:
    labels: tuple[str, ...]
    cells: tuple[Cell | None, ...]  # None: there is no such number


@dataclass(frozen=True)
class Table:
    """Rows of named cells."""

    title: str
    labels: tuple[str, ...]  # heads of the rows' labels
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    n: int  # images behind a cell; 0 where none are
    digits: int = 2  # behind the point
    units: str = ""  # what these images were answered in, where rows stand or fall together: "in 4 batches of 128"

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row.labels) != len(self.labels) or len(row.cells) != len(self.columns):
                raise ValueError(
                    f"{self.title}: a row has {len(row.labels)} labels and {len(row.cells)} cells, expected {len(self.labels)} and "
                    f"{len(self.columns)}."
                )

    def cell(self, labels: tuple[str, ...], column: str) -> Cell:
        """The cell at this place, which must exist."""
        found = next(row for row in self.rows if row.labels == labels).cells[
            self.columns.index(column)
        ]
        assert found is not None, f"{self.title} has no {column} for {labels}"
        return found


@dataclass(frozen=True)
class Heat:
    """Numbers in a grid, drawn as colors."""

    name: str
    title: str
    down: tuple[str, ...]
    across: tuple[str, ...]
    values: tuple[tuple[float, ...], ...]
    down_title: str = ""
    across_title: str = ""
    kind: Literal["heat"] = "heat"


@dataclass(frozen=True)
class Cloud:
    """Points of several kinds over two scales."""

    name: str
    title: str
    across: str
    up: str
    points: dict[str, tuple[tuple[float, float], ...]]
    joined: bool = False  # is the next point the next of a curve?
    kind: Literal["cloud"] = "cloud"


@dataclass(frozen=True)
class Result:
    """One experiment at one scale."""

    experiment: str
    title: str
    reports: str
    scale: str
    seed: int
    repeats: int
    command: str
    tables: tuple[Table, ...]
    notes: tuple[str, ...]  # what was put in the place of what the authors used
    findings: tuple[str, ...]  # what the numbers say, sentences made of them
    seconds: float  # of all attacks behind the numbers, also of those found in the folder
    forward: float  # passes of single images
    backward: float
    versions: dict[str, str]
    charts: tuple[Heat | Cloud, ...] = ()
    symptoms: tuple[str, ...] = ()  # reasons not to trust the numbers, read before them

    def record(self) -> dict[str, Any]:
        return {"schema": SCHEMA, **asdict(self)}

    def text(self) -> str:
        """The record as it is kept: JSON, numbers to seven digits, rows of numbers on one line."""
        return _compact(_rounded(self.record())) + "\n"


def read(text: str, place: str) -> Result:
    """A result from its record; one that this version cannot read is refused."""
    from pydantic import TypeAdapter, ValidationError

    try:
        record = migrated(json.loads(text), _MIGRATIONS, SCHEMA, place)
        return TypeAdapter(Result).validate_python(record)
    except (json.JSONDecodeError, AttributeError, ValidationError) as error:
        raise ValueError(
            f"{place} is no record of an experiment ({error}). Run the experiment again."
        ) from error


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.7g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list | tuple) else value


def _compact(value: Any, indent: int = 0) -> str:
    """JSON with a line per field or row, but none per number."""
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
