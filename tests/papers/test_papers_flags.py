"""Flags in tables, and what every committed record must have."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from saddlepoint.papers import EXPERIMENTS
from saddlepoint.papers.flags import FEWEST, LEAST_CLEAN, row_flags
from saddlepoint.papers.markdown import result_markdown, table_markdown
from saddlepoint.papers.result import Cell, Result, Row, Table, read

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "benchmarks" / "records"
PAPERS = ("adaptive", "blind-audit", "deq", "multi-exit", "transductive")
FILES = [path for paper in PAPERS for path in sorted((RECORDS / paper).glob("*.json"))]
OF_THE_PAPERS = [
    name
    for name, experiment in EXPERIMENTS.items()
    if "(ours)" not in experiment.title and not name.startswith("blind-audit/")
]


def result(*tables: Table, notes: tuple[str, ...] = ()) -> Result:
    return Result(
        "toy/table", "", "", "real", 0, 1, "", tables, notes, (), 1.0, 1.0, 1.0, {"commit": "c"}
    )


def rows(*cleans: float, label: str = "net") -> tuple[Row, ...]:
    return tuple(Row((f"{label} {k}",), (Cell((value,)),)) for k, value in enumerate(cleans))


def flags(table: Table, *others: Table, notes: tuple[str, ...] = ()) -> list[str]:
    return row_flags(result(table, *others, notes=notes))[0]


def test_rows_with_few_images_are_flagged() -> None:
    few = Table("T", ("net",), ("PGD",), rows(50.0, 60.0), FEWEST - 1)
    assert flags(few) == ["63 images", "63 images"]
    assert flags(Table("T", ("net",), ("PGD",), rows(50.0), FEWEST)) == [""]
    counted = Row(("net", "63"), (Cell((50.0,)),))
    shares = Row(("net", "32 of 63"), (Cell((50.0,)),))
    assert flags(Table("T", ("net", "images"), ("PGD",), (counted,), 0)) == ["63 images"]
    assert flags(Table("T", ("net", "correct"), ("PGD",), (shares,), 0)) == ["63 images"]


@pytest.mark.parametrize(("data", "least"), LEAST_CLEAN.items())
def test_networks_with_a_low_clean_accuracy_are_flagged(data: str, least: float) -> None:
    below = f"{least - 0.1:.1f} % clean"
    measured = rows(least, least - 0.1)
    for column in ("clean", "clean, %", "static, clean", "Madry, clean"):
        assert flags(Table(data, ("net",), (column,), measured, 100)) == ["", below]
    named = Table("T", ("net",), ("clean",), rows(least - 0.1, label=data), 100)
    assert flags(named) == [below]
    noted = Table("T", ("net",), ("clean",), measured, 100)
    assert flags(noted, notes=(f"net: {data}, 9 weights",)) == ["", below]
    assert flags(noted) == ["", ""], "no line is drawn for other data"


def test_the_static_network_is_the_base_of_a_defense() -> None:
    row = Row(("defense",), (Cell((10.0,)), Cell((90.0,))))
    assert flags(Table("cifar10", ("net",), ("clean", "static, clean"), (row,), 100)) == [""]
    attacks = (Row(("clean, static",), (Cell((60.0,)),)), Row(("PGD",), (Cell((80.0,)),)))
    assert flags(Table("cifar10", ("attack",), ("accuracy",), attacks, 100)) == ["60.0 % clean"] * 2


def test_the_last_exit_or_state_is_the_network() -> None:
    stages = Table("cifar10", ("exit",), ("clean",), rows(30.0, 90.0), 100)
    assert flags(stages) == ["", ""]
    assert (
        flags(Table("cifar10", ("exit",), ("clean",), rows(90.0, 30.0), 100))
        == ["30.0 % clean"] * 2
    )


def test_a_table_without_clean_accuracies_has_the_flag_of_the_best_row_of_the_record() -> None:
    attacked = Table("cifar10", ("net",), ("PGD",), rows(20.0), 100)
    clean = Table("cifar10", ("net",), ("clean",), rows(40.0, 60.0), 100)
    other = Table("mnist", ("net",), ("clean",), rows(90.0), 100)
    assert flags(attacked, clean, other) == ["60.0 % clean"]


def test_flags_are_the_last_column_of_a_table_that_has_any() -> None:
    table = Table("cifar10", ("net",), ("clean",), rows(60.0, 90.0), 100)
    text = result_markdown(result(table))
    assert "| net | clean | flags |\n| --- | ---: | --- |\n| net 0 | 60.00 | 60.0 % clean |" in text
    assert "| net 1 | 90.00 |  |" in text
    assert table_markdown(table, ["", ""]) == table_markdown(table)


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_committed_page_flags_few_images_and_weak_networks(path: Path) -> None:
    found = read(path.read_text(encoding="utf-8"), str(path))
    page = (ROOT / "docs" / "results" / f"{path.parent.name}.md").read_text(encoding="utf-8")
    for table, texts in zip(found.tables, row_flags(found), strict=True):
        assert table_markdown(table, texts) in page, f"rebuild the page of {path.parent.name}"
        few = 0 < table.n < FEWEST
        assert all(re.search(r"\d+ images?", text) for text in texts) or not few


@pytest.mark.parametrize("name", OF_THE_PAPERS)
def test_every_table_and_figure_has_numbers_at_scale_real_or_a_measured_cost(name: str) -> None:
    path = RECORDS / f"{name}-real.json"
    found = read(path.read_text(encoding="utf-8"), str(path))
    assert (found.experiment, found.scale) == (name, "real")
    assert found.versions["commit"]
    if found.tables:
        assert any(cell for table in found.tables for row in table.rows for cell in row.cells)
        return
    other = re.search(r"in the record ([\w/-]+)", found.not_run)
    if other:
        assert read((RECORDS / f"{other[1]}.json").read_text(encoding="utf-8"), "").tables
    else:
        assert re.search(r"measured on \d+ images?", found.not_run)
        assert re.search(r"\d (h|hours)\b", found.not_run)
