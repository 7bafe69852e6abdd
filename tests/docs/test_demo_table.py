"""The first screen of the README agrees with the committed records."""

from __future__ import annotations

import json
import re
from pathlib import Path

from benchmarks.demo_table import BEGIN, END, RECORD, table, with_table

from saddlepoint.cli.demo_run import Effort

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
WILD = (ROOT / "docs" / "results" / "wild.md").read_text()


def test_the_table_of_the_demo_is_that_of_its_record() -> None:
    record = json.loads(RECORD.read_text())
    assert with_table(README, record) == README
    record["models"][0]["robust"] += 0.01
    assert with_table(README, record) != README


def test_the_column_of_autoattack_is_the_full_suite() -> None:
    record = json.loads(RECORD.read_text())
    assert Effort(record["autoattack"]) is Effort.FULL
    assert "| AutoAttack (our implementation) |" in README
    short = table({**record, "autoattack": str(Effort.SHORT)})
    assert "| shortened AutoAttack (our implementation) |" in short


def test_three_defenses_lose_thirty_points_and_the_robust_net_stays_credible() -> None:
    models = json.loads(RECORD.read_text())["models"]
    lost = [model["authors"] - model["robust"] for model in models]
    assert sum(points >= 0.3 for points in lost) >= 3
    assert (models[-1]["name"], models[-1]["verdict"]) == ("robust", "credible")
    assert abs(lost[-1]) < 0.1


def test_the_table_is_on_the_first_screen() -> None:
    before, marked, _ = README.partition(BEGIN)
    assert marked
    assert before.count("\n") < 12
    assert END in README
    assert table(json.loads(RECORD.read_text())) in README


def test_the_comparison_with_autoattack_is_that_of_the_page_of_results() -> None:
    first_table = WILD.partition("\n## ")[2].partition("\n\\* ")[0]
    rows = re.findall(r"^\| (?:cifar10|mnist)/.*\|$", first_table, re.MULTILINE)
    shares = [float(re.search(r"\| ([\d.]+) % \|", row)[1]) for row in rows]  # type: ignore[index]
    claim = f"{min(shares):.0f}–{max(shares):.0f} % of its passes"
    assert claim in README
    cells = [[cell.strip() for cell in row.split("|")] for row in rows]
    differences = [
        int(row[first]) - int(row[first + 1]) for row in cells for first in (3, 5)
    ]  # images left by the audit, minus those left by AutoAttack
    assert f"{len(rows)} networks" in README
    assert max(differences) <= 0
    assert -sum(differences) == 1
    assert "one image fewer" in README
