"""Committed records: no audit is claimed to match an attack that had less than its budget."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from saddlepoint.papers.blind_audit.audit import COLUMNS

RECORDS = Path(__file__).parents[2] / "benchmarks" / "records"
BLIND = sorted((RECORDS / "blind-audit").glob("*.json"))


def stale(folder: str) -> dict[str, str]:
    file = RECORDS / folder / "stale.toml"
    return tomllib.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


@pytest.mark.parametrize("path", BLIND, ids=lambda path: path.stem)
def test_a_blind_audit_shows_the_passes_of_both_attacks_or_is_stale(path: Path) -> None:
    table = json.loads(path.read_text(encoding="utf-8"))["tables"][0]
    complete = tuple(table["columns"]) == COLUMNS
    assert complete != (path.stem in stale("blind-audit"))


@pytest.mark.parametrize("path", BLIND, ids=lambda path: path.stem)
def test_a_stale_claim_is_not_on_the_page_without_its_reason(path: Path) -> None:
    page = (RECORDS.parents[1] / "docs" / "results" / "blind-audit.md").read_text(encoding="utf-8")
    reason = stale("blind-audit").get(path.stem)
    assert reason is None or f"> **Stale.** {reason}" in page


def test_audits_of_adaptive_defenses_have_one_source() -> None:
    record = json.loads((RECORDS / "adaptive" / "table-1.json").read_text(encoding="utf-8"))
    assert "audit" not in record["tables"][0]["columns"]
    assert not any("Under an audit" in finding for finding in record["findings"])
