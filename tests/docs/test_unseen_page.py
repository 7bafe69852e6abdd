"""The page about models that the audit had not seen, and the rate that another page quotes."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.unseen_page import judgment, page

ROOT = Path(__file__).parents[2]
ROUNDS = {
    path.stem: json.loads(path.read_text(encoding="utf-8"))
    for path in sorted((ROOT / "benchmarks" / "records" / "unseen").glob("*.json"))
}


def test_the_page_is_written_from_the_records() -> None:
    committed = (ROOT / "docs" / "results" / "unseen.md").read_text(encoding="utf-8")
    assert committed == page(ROUNDS)


def test_the_page_of_verdicts_quotes_how_often_a_credible_number_was_too_high() -> None:
    models = [model for record in ROUNDS.values() for model in record["models"]]
    missed = sum(judgment(model, model["first"]) == "too high, credible" for model in models)
    text = " ".join((ROOT / "docs" / "verdict.md").read_text(encoding="utf-8").split())
    assert f"Of {len(models)} models that the audit had not seen, {missed} were first rated" in text
