"""A leaderboard of published defenses, built from records of experiments alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from saddlepoint.papers.flags import FEWEST, image_count, too_few
from saddlepoint.papers.markdown import format_cell, heading
from saddlepoint.papers.result import Cell, Result, Row, Table, read
from saddlepoint.papers.write import stale_reasons
from saddlepoint.phrases import count
from saddlepoint.reports.document import document, muted, save_page
from saddlepoint.reports.markup import Markup, join, tag
from saddlepoint.reports.sorting import SORT_SCRIPT
from saddlepoint.zoo.adaptive.taxonomy import TABLE, Surveyed

NOT_AUDITED = "not audited"
AUDIT = "audit"
# Records with one defense each, whose rows are attacks.
SINGLE = {"adaptive/released-closed-loop": "ClosedLoopControl", "adaptive/released-soap": "SOAP"}
_SURVEYED: Mapping[str, Surveyed] = {row.name: row for row in TABLE}
_WORST_CASE = "worst case of all attacks"
_TIME = "time, ×"


@dataclass(frozen=True)
class LeaderboardLine:
    """One line of the leaderboard: a defense in one record."""

    defense: str
    setting: str  # network and data
    images: int
    ours: Cell  # lowest robust accuracy in percent
    attack: str  # that leaves this accuracy
    verdict: str  # of the audit
    record: str  # name of the experiment
    url: str  # of the section with all numbers, relative to the leaderboard
    cost: float | None = None  # time of an answer relative to the static network, measured
    stale: bool = False

    @property
    def surveyed(self) -> Surveyed | None:
        """What Croce et al. 2022 report about this defense; None for other defenses."""
        return _SURVEYED.get(self.defense)


def is_record_folder(folder: Path) -> bool:
    """Whether a folder has subfolders with records of experiments."""
    return any(_is_record(path) for path in sorted(folder.glob("*/*.json"))[:3])


def write_leaderboard(records: Path, out: Path) -> Path:
    """Write `out/index.html` from the records in the subfolders of a folder.

    Args:
        records: folder with one folder of records per paper, `PAPER/NAME.json`.
        out: folder of the site.

    Returns:
        The path of the page.

    Raises:
        ValueError: the records contain no defense.
    """
    lines = sorted(read_lines(records), key=lambda one: (one.stale, one.defense, one.ours.mean))
    if not lines:
        raise ValueError(f"{records} has no record with the robust accuracy of a defense.")
    page = document("Leaderboard of published defenses", _body(lines), script=SORT_SCRIPT)
    return save_page(out / "index.html", page)


def read_lines(records: Path) -> Iterator[LeaderboardLine]:
    """Yield one line for each defense in each record that gives its robust accuracy."""
    for path in sorted(records.glob("*/*.json")):
        if not _is_record(path):
            continue
        result = read(path.read_text(encoding="utf-8"), str(path))
        stale = path.stem in stale_reasons(path.parent)
        if result.experiment in SINGLE:
            yield _single(result, stale=stale)
        elif result.experiment == "adaptive/table-1" and result.tables:
            yield from _survey(result, stale=stale)
        elif result.experiment.startswith("blind-audit/"):
            yield from _audits(result, stale=stale)


def _single(result: Result, *, stale: bool) -> LeaderboardLine:
    """The row with the lowest accuracy of a table whose rows are attacks on one defense.

    Rows without a published number are about variants of the defense.
    """
    (table,) = result.tables
    attacks = [
        row
        for row in table.rows
        if "static" not in row.labels[0] and _cell(row, 0).paper is not None
    ]
    lowest = min(attacks, key=lambda row: _cell(row, 0).mean)
    audited = any(row.labels[0].startswith(AUDIT) for row in table.rows)
    verdicts = [re.search(r"verdict (\w+)", note) for note in result.notes]
    verdict = next((found[1] for found in verdicts if found), NOT_AUDITED)
    return LeaderboardLine(
        defense=SINGLE[result.experiment],
        setting=f"{result.title}; {table.title.split(', ', 2)[2]}",
        images=image_count(table, lowest),
        ours=_cell(lowest, 0),
        attack=lowest.labels[0],
        verdict=verdict if audited else NOT_AUDITED,
        record=result.experiment,
        url=section_url(result),
        stale=stale,
    )


def _survey(result: Result, *, stale: bool) -> Iterator[LeaderboardLine]:
    """The lines of Table 1 of Croce et al. 2022, with the measured cost of an answer."""
    accuracies, costs = result.tables[:2]
    measured = {row.labels[0]: _cell(row, costs.columns.index(_TIME)).mean for row in costs.rows}
    for row in accuracies.rows:
        attack = _strongest(accuracies, row)
        audited = "verdict" in accuracies.labels
        yield LeaderboardLine(
            defense=row.labels[0],
            setting=next(iter(result.weights), row.labels[1]),
            images=image_count(accuracies, row),
            ours=_cell(row, accuracies.columns.index(attack)),
            attack=attack,
            verdict=_label(accuracies, row, "verdict") if audited else NOT_AUDITED,
            record=result.experiment,
            url=section_url(result),
            cost=measured.get(row.labels[0]),
            stale=stale,
        )


def _strongest(table: Table, row: Row) -> str:
    """The column with the lowest accuracy of the defense; the worst case of all, if it is there."""
    if _WORST_CASE in table.columns:
        return _WORST_CASE
    attacks = {
        column: cell.mean
        for column, cell in zip(table.columns, row.cells, strict=True)
        if cell is not None and not re.search("clean$|static", column)
    }
    return min(attacks, key=lambda column: attacks[column])


def _audits(result: Result, *, stale: bool) -> Iterator[LeaderboardLine]:
    for table in result.tables:
        for row in table.rows:
            yield LeaderboardLine(
                defense=_label(table, row, "defense"),
                setting=_label(table, row, "data"),
                images=image_count(table, row),
                ours=_cell(row, table.columns.index(AUDIT)),
                attack=_label(table, row, "decisive attack of the audit"),
                verdict=_label(table, row, "verdict"),
                record=result.experiment,
                url=section_url(result),
                stale=stale,
            )


def section_url(result: Result) -> str:
    """Return the URL of a record's section on the site of the documentation."""
    paper = result.experiment.partition("/")[0]
    anchor = re.sub(r"[^\w\- ]", "", heading(result).lower()).replace(" ", "-")
    return f"../results/{paper}.html#{anchor}"


def _cell(row: Row, column: int) -> Cell:
    cell = row.cells[column]
    assert cell is not None, f"{row.labels} has no number in column {column}"
    return cell


def _label(table: Table, row: Row, name: str) -> str:
    return row.labels[table.labels.index(name)]


def _is_record(path: Path) -> bool:
    start = path.read_text(encoding="utf-8")[:200]
    return re.search(r'"experiment": "[\w-]+/[\w-]+"', start) is not None


@dataclass(frozen=True)
class _Column:
    """One column: its title, what a cell shows, and what it is sorted by; None is last."""

    title: str
    content: Callable[[LeaderboardLine], Markup]
    value: Callable[[LeaderboardLine], float | str | None]

    @property
    def kind(self) -> str:
        return "words" if self.title in ("defense", "audit") else "number"


def _percentage(value: float | None) -> Markup:
    return join("–" if value is None else f"{value:.1f} %")


def _claimed(one: LeaderboardLine) -> float | None:
    return one.surveyed.reported if one.surveyed else None


def _found(one: LeaderboardLine) -> float | None:
    return one.surveyed.found if one.surveyed else None


def _defense(one: LeaderboardLine) -> Markup:
    paper = tag("small", one.surveyed.paper) if one.surveyed else join("")
    stale = tag("small", "stale: measured by earlier code") if one.stale else join("")
    return join(one.defense, paper, tag("small", f"{one.setting}, {one.record}"), stale)


def _ours(one: LeaderboardLine) -> Markup:
    return join(
        tag("b", f"≤ {format_cell(Cell(one.ours.values, None, one.ours.interval), 1)}"),
        tag("small", one.attack),
    )


def _images(one: LeaderboardLine) -> Markup:
    flag = f"fewer than {FEWEST}" if too_few(one.images) else ""
    return join(str(one.images), tag("small", flag) if flag else "")


def _cost(one: LeaderboardLine) -> Markup:
    if one.cost is not None:
        return join(f"{one.cost:.0f} ×")
    return join(f"{one.surveyed.inference} × (published)" if one.surveyed else "–")


def _cost_value(one: LeaderboardLine) -> float | None:
    if one.cost is not None or one.surveyed is None:
        return one.cost
    return float(one.surveyed.inference)


_COLUMNS = (
    _Column("defense", _defense, lambda one: one.defense),
    _Column("claimed", lambda one: _percentage(_claimed(one)), _claimed),
    _Column("best published attack", lambda one: _percentage(_found(one)), _found),
    _Column("ours", _ours, lambda one: one.ours.mean),
    _Column("images", _images, lambda one: float(one.images)),
    _Column("cost of an answer", _cost, _cost_value),
    _Column("audit", lambda one: tag("a", one.verdict, href=one.url), lambda one: one.verdict),
)


def _body(lines: list[LeaderboardLine]) -> Markup:
    head = (
        tag("th", tag("button", one.title, type="button"), scope="col", class_=one.kind)
        for one in _COLUMNS
    )
    rows = (
        tag(
            "tr",
            *(
                tag(
                    "td",
                    column.content(one),
                    class_=column.kind,
                    data_value="" if (value := column.value(one)) is None else str(value),
                )
                for column in _COLUMNS
            ),
        )
        for one in lines
    )
    content = tag(
        "table", tag("thead", tag("tr", *head)), tag("tbody", *rows), class_="leaderboard"
    )
    stale = sum(one.stale for one in lines)
    return tag(
        "main",
        tag("p", "saddlepoint", class_="brand"),
        tag("h1", "Leaderboard of published defenses"),
        tag("div", content, class_="card scroll", tabindex=0, role="region", aria_label="defenses"),
        tag(
            "p",
            "Sorted by defense. Click a column title to sort by it.",
            class_="muted",
            role="status",
        ),
        muted(
            "Claimed: robust accuracy that the authors of the defense report. Best published "
            "attack: what Croce et al. 2022 measured on the authors' networks. Ours: the lowest "
            "robust accuracy in the record, an upper bound, with a 95 % interval over images. "
            "Networks and data of a line are those of its record; only lines on the authors' "
            "weights can be compared with published numbers. The last column is the verdict of "
            "the audit and leads to all numbers of the record."
        ),
        muted(
            f"{count(len(lines), 'line')}, {stale} of them from stale records. Written by "
            "`saddlepoint report benchmarks/records --out docs/leaderboard`; no number is typed "
            "by hand."
        ),
        class_="wide",
    )
