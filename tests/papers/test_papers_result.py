"""Results of reproductions: their arithmetic, their records, and the tables and pages written from them."""

from __future__ import annotations

import math
from xml.etree import ElementTree

import pytest

from saddlepoint.papers.charts import drawn
from saddlepoint.papers.markdown import of_result, of_table, shown
from saddlepoint.papers.result import Cell, Cloud, Heat, Result, Row, Table, read
from saddlepoint.papers.write import page


def table() -> Table:
    rows = (
        Row(("AIMER",), (Cell((40.0, 42.0), 45.85), None)),
        Row(("Single",), (Cell((50.0,), interval=(45.0, 55.5)), Cell((1.0,)))),
    )
    return Table("Accuracy, %", ("evaluation",), ("PGD-20", "R_mis"), rows, 16, digits=1)


def result(**other: object) -> Result:
    given = {
        "experiment": "toy/table-9",
        "title": "A toy",
        "reports": "Nothing at all.",
        "scale": "tiny",
        "seed": 3,
        "repeats": 2,
        "command": "saddlepoint reproduce toy/table-9 --scale tiny --seed 3",
        "tables": (table(),),
        "notes": ("digits in the place of SVHN",),
        "findings": ("AIMER is 3.85 points above.",),
        "seconds": 1.25,
        "forward": 100.0,
        "backward": 90.0,
        "versions": {"torch": "2"},
        "charts": (
            Heat("heat", "Heat", ("1", "2"), ("1", "2"), ((1.0, 2.0), (3.0, 4.0))),
            Cloud(
                "cloud",
                "Cloud",
                "R",
                "A",
                {"AIMER": ((0.5, 40.0),), "Single": ((0.7, 50.0), (0.9, 60.0))},
            ),
        ),
    }
    return Result(**{**given, **other})  # type: ignore[arg-type]


def test_mean_and_standard_deviation_are_those_of_a_sample() -> None:
    cell = Cell((40.0, 42.0, 47.0))
    assert cell.mean == pytest.approx(43.0, abs=1e-12)
    assert cell.std == pytest.approx(math.sqrt((9 + 1 + 16) / 2), abs=1e-12)
    assert Cell((40.0,)).std == 0


def test_a_cell_shows_spread_interval_and_the_papers_number_only_where_there_are_any() -> None:
    assert shown(Cell((40.0, 42.0), 45.85), 2) == "41.00 ± 1.41 [45.85]"
    assert shown(Cell((50.0,), interval=(45.0, 55.5)), 1) == "50.0 (45.0–55.5)"
    assert shown(Cell((0.0,), 0.0), 2) == "0.00 [0.00]"
    assert shown(Cell((1.0945e8,)), 2) == "1.094e+08"
    assert shown(None, 2) == "–"


def test_a_table_is_markdown_with_a_line_per_row() -> None:
    assert of_table(table()).splitlines() == [
        "| evaluation | PGD-20 | R_mis |",
        "| --- | ---: | ---: |",
        "| AIMER | 41.0 ± 1.4 [45.9] | – |",
        "| Single | 50.0 (45.0–55.5) | 1.0 |",
    ]


def test_rows_that_do_not_fit_their_table_are_refused() -> None:
    with pytest.raises(ValueError, match="1 labels and 1 cells, expected 1 and 2"):
        Table("T", ("a",), ("b", "c"), (Row(("x",), (None,)),), 1)


def test_a_record_is_read_as_it_was_written() -> None:
    kept = result()
    assert read(kept.text(), "here") == kept
    assert max(map(len, kept.text().splitlines())) <= 160


def test_records_of_a_newer_version_and_other_files_are_refused() -> None:
    newer = result().text().replace('"schema": 1', '"schema": 99')
    with pytest.raises(ValueError, match="schema 99"):
        read(newer, "here")
    for other in ("{", "[]", '{"schema": 1}'):
        with pytest.raises(ValueError, match="here is no record of an experiment"):
            read(other, "here")


def test_a_page_says_command_seeds_data_numbers_and_findings(tmp_path) -> None:
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / "table-9.json").write_text(result().text())
    out = page(
        tmp_path / "records",
        tmp_path / "docs" / "toy.md",
        title="Reproduced",
        intro="From records.",
    )
    text = out.read_text()
    for words in (
        "# Reproduced", "From records.", "## toy/table-9: A toy", "saddlepoint reproduce toy/table-9 --scale tiny --seed 3",
        "2 repeats, seeds 3 to 4", "(16 images)", "41.0 ± 1.4 [45.9]", "AIMER is 3.85 points above.", "digits in the place of SVHN",
        "![Cloud](toy/cloud.svg)",
    ):  # fmt: skip
        assert words in text, words
    assert {file.name for file in (tmp_path / "docs" / "toy").iterdir()} == {
        "heat.svg",
        "cloud.svg",
    }


def test_a_page_without_records_says_where_they_come_from(tmp_path) -> None:
    with pytest.raises(FileNotFoundError, match="holds no records"):
        page(tmp_path, tmp_path / "page.md", title="", intro="")


def test_charts_are_pictures_with_every_number_and_point() -> None:
    heat, cloud = (ElementTree.fromstring(drawn(chart)) for chart in result().charts)
    words = [text.text for text in heat.iter("{http://www.w3.org/2000/svg}text")]
    assert [word for word in words if word in ("1.0", "2.0", "3.0", "4.0")] == [
        "1.0",
        "2.0",
        "3.0",
        "4.0",
    ]
    circles = list(cloud.iter("{http://www.w3.org/2000/svg}circle"))
    assert len(circles) == 3 + 2, "a circle per point and one per name"
    assert all(
        0 <= float(c.get("cx", -1)) <= 720 and 0 <= float(c.get("cy", -1)) <= 420 for c in circles
    )


def test_one_run_is_not_called_several(tmp_path) -> None:
    assert "one run, seed 3;" in of_result(result(repeats=1))
