"""The leaderboard of published defenses is built from records; the committed page is current."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from saddlepoint.papers.leaderboard import is_record_folder, read_lines, write_leaderboard
from saddlepoint.papers.result import Cell, Result, Row, Table
from saddlepoint.zoo.adaptive import TABLE

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "benchmarks" / "records"


def test_the_committed_page_is_the_one_that_the_records_give(tmp_path: Path) -> None:
    page = write_leaderboard(RECORDS, tmp_path)
    assert page.read_bytes() == (ROOT / "docs" / "leaderboard" / "index.html").read_bytes(), (
        "run saddlepoint report benchmarks/records --out docs/leaderboard"
    )


def test_every_surveyed_defense_has_a_line_with_its_published_numbers() -> None:
    lines = list(read_lines(RECORDS))
    for row in TABLE:
        found = [one for one in lines if one.defense == row.name]
        assert found, row.name
        for one in found:
            assert one.surveyed == row
            assert one.images >= 1
            assert 0 <= one.ours.mean <= 100


def test_the_lowest_accuracy_of_a_released_defense_is_shown_and_not_that_of_its_static_net(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "adaptive"
    folder.mkdir()
    shutil.copy(RECORDS / "adaptive" / "released-soap.json", folder)
    (one,) = read_lines(tmp_path)
    assert one.defense == "SOAP"
    assert "static" not in one.attack
    assert "clean" not in one.attack
    assert "today" not in one.attack
    assert not one.stale
    (folder / "stale.toml").write_text('released-soap = "old"\n')
    (one,) = read_lines(tmp_path)
    assert one.stale


def test_the_strongest_attack_of_a_real_table_is_shown_with_its_images_and_verdict(
    tmp_path: Path,
) -> None:
    labels = ("defense", "images", "attack of the paper", "verdict", "reduced")
    columns = (
        "clean",
        "static, AutoAttack",
        "the paper's attack",
        "audit, standard",
        "minus static",
    )
    cells = tuple(Cell((value,)) for value in (80.0, 10.0, 60.0, 55.0, -9.0))
    row = Row(("SODEF", "64", "Transfer APGD", "overstated", "none"), cells)
    accuracies = Table("accuracy", labels, columns, (row,), 0)
    costs = Table("cost", ("defense",), ("time, ×",), (Row(("SODEF",), (Cell((3.0,)),)),), 0)
    result = Result(
        "adaptive/table-1", "a", "", "real", 0, 1, "", (accuracies, costs), (), (), 1, 1, 1, {}
    )
    (tmp_path / "adaptive").mkdir()
    (tmp_path / "adaptive" / "table-1-real.json").write_text(result.text())
    (one,) = read_lines(tmp_path)
    assert (one.attack, one.ours.mean, one.images) == ("audit, standard", 55.0, 64)
    assert (one.verdict, one.cost) == ("overstated", 3.0)


def test_every_line_leads_to_a_section_of_a_committed_page() -> None:
    for one in read_lines(RECORDS):
        page, _, anchor = one.url.partition("#")
        text = (ROOT / "docs" / "leaderboard" / page).with_suffix(".md").resolve().read_text()
        headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
        assert anchor in [re.sub(r"[^a-z0-9 -]", "", h.lower()).replace(" ", "-") for h in headings]


def test_a_folder_without_records_gives_no_leaderboard(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "run.json").write_text("{}")
    assert not is_record_folder(tmp_path)
    assert is_record_folder(RECORDS)
    with pytest.raises(ValueError, match="no record with the robust accuracy"):
        write_leaderboard(tmp_path, tmp_path / "site")
