"""Results of reproductions: means, records, tables, charts and pages."""

from __future__ import annotations

import math
from xml.etree import ElementTree

import pytest

from saddlepoint.evaluation.bootstrap import Estimate
from saddlepoint.papers.cells import by_interval, difference_text
from saddlepoint.papers.charts import draw_svg
from saddlepoint.papers.comparison import PaperComparison
from saddlepoint.papers.markdown import format_cell, result_markdown, table_markdown
from saddlepoint.papers.result import Cell, HeatMap, Plot, Result, Row, Table, read
from saddlepoint.papers.write import write_page


def table() -> Table:
    rows = (
        Row(("AIMER",), (Cell((40.0, 42.0), 45.85), None)),
        Row(("Single",), (Cell((50.0,), interval=(45.0, 55.5)), Cell((1.0,)))),
    )
    return Table("Accuracy, %", ("evaluation",), ("PGD-20", "R_mis"), rows, 16, digits=1)


def result(**other: object) -> Result:
    fields = {
        "experiment": "toy/table-9",
        "title": "A toy",
        "reports": "Nothing at all.",
        "scale": "tiny",
        "seed": 3,
        "repeats": 2,
        "command": "saddlepoint reproduce toy/table-9 --scale tiny --seed 3",
        "tables": (table(),),
        "notes": ("digits instead of SVHN",),
        "findings": ("AIMER is 3.85 points above.",),
        "seconds": 1.25,
        "forward": 100.0,
        "backward": 90.0,
        "versions": {"torch": "2"},
        "charts": (
            HeatMap("heat", "Heat map", ("1", "2"), ("1", "2"), ((1.0, 2.0), (3.0, 4.0))),
            Plot(
                "plot",
                "Plot",
                "R",
                "A",
                {"AIMER": ((0.5, 40.0),), "Single": ((0.7, 50.0), (0.9, 60.0))},
            ),
        ),
    }
    return Result(**{**fields, **other})  # type: ignore[arg-type]


def test_a_cell_has_the_mean_and_the_sample_standard_deviation_of_its_values() -> None:
    cell = Cell((40.0, 42.0, 47.0))
    assert cell.mean == pytest.approx(43.0, abs=1e-12)
    assert cell.std == pytest.approx(math.sqrt((9 + 1 + 16) / 2), abs=1e-12)
    assert Cell((40.0,)).std == 0


def test_a_formatted_cell_contains_spread_interval_and_paper_number_if_they_exist() -> None:
    assert format_cell(Cell((40.0, 42.0), 45.85), 2) == "41.00 ± 1.41 [45.85]"
    assert format_cell(Cell((50.0,), interval=(45.0, 55.5)), 1) == "50.0 (45.0–55.5)"
    assert format_cell(Cell((0.0,), 0.0), 2) == "0.00 [0.00]"
    assert format_cell(Cell((1.0945e8,)), 2) == "1.094e+08"
    assert format_cell(None, 2) == "–"


def test_a_markdown_table_has_one_line_per_row() -> None:
    assert table_markdown(table()).splitlines() == [
        "| evaluation | PGD-20 | R_mis |",
        "| --- | ---: | ---: |",
        "| AIMER | 41.0 ± 1.4 [45.9] | – |",
        "| Single | 50.0 (45.0–55.5) | 1.0 |",
    ]


def test_a_row_with_a_wrong_number_of_labels_or_cells_raises_an_error() -> None:
    with pytest.raises(ValueError, match="1 labels and 1 cells, expected 1 and 2"):
        Table("T", ("a",), ("b", "c"), (Row(("x",), (None,)),), 1)


def test_a_saved_record_is_read_back_unchanged() -> None:
    kept = result()
    assert read(kept.text(), "here") == kept
    assert max(map(len, kept.text().splitlines())) <= 160


def test_records_of_a_newer_version_and_other_files_raise_an_error() -> None:
    newer = result().text().replace('"schema": 2', '"schema": 99')
    with pytest.raises(ValueError, match="schema 99"):
        read(newer, "here")
    for other in ("{", "[]", '{"schema": 1}'):
        with pytest.raises(ValueError, match="here is not a record of an experiment"):
            read(other, "here")


def test_old_findings_lose_their_verdicts_about_the_paper() -> None:
    findings = (
        "RMC adds no robustness to its base, as in the paper.",
        "45.5 %, a gain, as in the paper: +30.0 points.",
        "discriminators rejected 85 % of brighter images, as in the paper, but 1 % of points.",
    )
    old = result(findings=findings).text().replace('"schema": 2', '"schema": 1')
    assert read(old, "here").findings == (
        "RMC adds no robustness to its base.",
        "45.5 %, a gain: +30.0 points.",
        findings[2],
    )


def test_a_page_contains_command_seeds_numbers_notes_findings_and_charts(tmp_path) -> None:
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / "table-9.json").write_text(result().text())
    out = write_page(
        tmp_path / "records",
        tmp_path / "docs" / "toy.md",
        title="Reproduced",
        intro="From records.",
    )
    text = out.read_text()
    for words in (
        "# Reproduced",
        "From records.",
        "## toy/table-9: A toy",
        "saddlepoint reproduce toy/table-9 --scale tiny --seed 3",
        "2 repeats, seeds 3 to 4",
        "(16 images)",
        "41.0 ± 1.4 [45.9]",
        "AIMER is 3.85 points above.",
        "digits instead of SVHN",
        "![Plot](toy/plot.svg)",
    ):
        assert words in text, words
    assert {file.name for file in (tmp_path / "docs" / "toy").iterdir()} == {
        "heat.svg",
        "plot.svg",
    }


def test_a_page_marks_stale_records_and_compares_others_with_the_paper(tmp_path) -> None:
    (tmp_path / "table-9.json").write_text(result().text())
    (tmp_path / "stale.toml").write_text('table-9 = "It was made by an older attack."')
    page = write_page(tmp_path, tmp_path / "page.md", title="", intro="").read_text()
    assert "> **Stale.** It was made by an older attack." in page
    (tmp_path / "stale.toml").write_text('table-8 = "Gone."')
    with pytest.raises(ValueError, match="marks table-8, but the folder has only table-9"):
        write_page(tmp_path, tmp_path / "page.md", title="", intro="")
    compared = PaperComparison(("AA is against the paper.",), ("The base is another one.",))
    section = result_markdown(result(), comparison=compared)
    assert section.index("> **Warning.** The base is another one.") < section.index("| evaluation")
    assert "Compared with the paper:\n- AA is against the paper." in section


def test_a_page_from_a_folder_without_records_raises_an_error(tmp_path) -> None:
    with pytest.raises(FileNotFoundError, match="contains no records"):
        write_page(tmp_path, tmp_path / "page.md", title="", intro="")


def test_charts_are_svg_with_every_number_and_every_point() -> None:
    heat_map, plot = (ElementTree.fromstring(draw_svg(chart)) for chart in result().charts)
    words = [text.text for text in heat_map.iter("{http://www.w3.org/2000/svg}text")]
    assert [word for word in words if word in ("1.0", "2.0", "3.0", "4.0")] == [
        "1.0",
        "2.0",
        "3.0",
        "4.0",
    ]
    circles = list(plot.iter("{http://www.w3.org/2000/svg}circle"))
    assert len(circles) == 3 + 2, "one circle per point and one per series in the legend"
    assert all(
        0 <= float(c.get("cx", -1)) <= 720 and 0 <= float(c.get("cy", -1)) <= 420 for c in circles
    )


def test_a_single_run_is_described_as_one_run_with_one_seed() -> None:
    assert "one run, seed 3;" in result_markdown(result(repeats=1))


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [(0.1, 2.0, "above"), (-2.0, -0.1, "below"), (0.0, 2.0, "unclear"), (-1.0, 1.0, "unclear")],
)
def test_a_text_is_chosen_by_the_sign_of_an_interval(low: float, high: float, text: str) -> None:
    found = by_interval(low, high, above="above", below="below", inconclusive="unclear")
    assert found == text


def test_a_difference_is_formatted_in_points_with_its_interval() -> None:
    assert difference_text(Estimate(0.25, -0.125, 0.5, 8)) == "+25.0 points (-12.5 to +50.0)"
