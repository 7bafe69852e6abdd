"""Claims: verdicts from intervals, flags, and the page that lists them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from saddlepoint.papers import results_index
from saddlepoint.papers.claims import CellReference, Claim, Verdict, decide
from saddlepoint.papers.result import Cell, Result, Row, Table, read


def result(*rows: Row, n: int = 100, **other: object) -> Result:
    fields: dict[str, object] = {
        "experiment": "toy/table-9",
        "title": "A toy",
        "reports": "Nothing.",
        "scale": "real",
        "seed": 0,
        "repeats": 1,
        "command": "saddlepoint reproduce toy/table-9 --scale real --models FOLDER",
        "tables": (Table("T", ("defense", "images"), ("a", "b"), rows, n),),
        "notes": (),
        "findings": (),
        "seconds": 1.0,
        "forward": 1.0,
        "backward": 1.0,
        "versions": {},
    }
    return Result(**{**fields, **other})  # type: ignore[arg-type]


CLAIM = Claim("It works.", "toy/table-9", CellReference(0, ("x",), "a"), "net", "cifar10")


def one(low: float, high: float, **cell: object) -> Row:
    middle = (low + high) / 2
    first = Cell((middle,), interval=(low, high), **cell)  # type: ignore[arg-type]
    return Row(("x", "40"), (first, Cell((30.0,), 10.0)))


@pytest.mark.parametrize(
    ("low", "high", "expected", "verdict"),
    [
        (1.0, 3.0, "positive", Verdict.CONFIRMED),
        (-1.0, 3.0, "positive", Verdict.NOT_CONFIRMED),
        (-3.0, -1.0, "positive", Verdict.CONTRADICTED),
        (-3.0, -1.0, "negative", Verdict.CONFIRMED),
        (1.0, 3.0, "negative", Verdict.CONTRADICTED),
    ],
)
def test_a_verdict_follows_from_the_interval(low, high, expected, verdict) -> None:
    found = decide(replace(CLAIM, expected=expected), result(one(low, high)))
    assert found.verdict is verdict
    sign = -1 if expected == "negative" else 1  # effects are positive in the claim's direction
    assert found.effect[1:] == tuple(sorted((sign * low, sign * high)))


def test_a_difference_that_no_image_shows_is_flagged() -> None:
    found = decide(CLAIM, result(one(0, 0)))
    assert found.verdict is Verdict.NOT_CONFIRMED
    assert found.flags == ("equal on every image",)


def test_a_published_level_must_be_in_the_interval() -> None:
    level = replace(CLAIM, expected="published")
    assert decide(level, result(one(1, 3, paper=2.5))).verdict is Verdict.CONFIRMED
    assert decide(level, result(one(1, 3, paper=3.5))).verdict is Verdict.CONTRADICTED
    at_most = replace(CLAIM, expected="at most")
    verdicts = [decide(at_most, result(one(1, 3, paper=p))).verdict for p in (3.5, 2.5, 0.5)]
    assert verdicts == [Verdict.CONFIRMED, Verdict.CONFIRMED, Verdict.CONTRADICTED]


def test_a_difference_has_an_interval_over_images_and_the_papers_difference() -> None:
    row = Row(("x", "40"), (Cell((80.0,), 70.0), Cell((30.0,), 10.0)))
    found = decide(replace(CLAIM, second=CellReference(0, ("x",), "b")), result(row))
    assert found.effect.value == pytest.approx(50.0)
    assert 30 < found.effect.low < 50 < found.effect.high < 65
    assert (found.published, found.images) == (pytest.approx(60.0), 100)


def test_few_images_weak_bases_and_masked_cells_are_flagged() -> None:
    row = one(1, 3, masked=True)
    base = replace(CLAIM, base=CellReference(0, ("x",), "b"))
    found = decide(base, result(row, n=0))
    assert found.images == 40
    assert found.flags == (
        "fewer than 64 images",
        "masked gradients",
        "base network 30.0 % clean",
    )
    assert decide(CLAIM, result(one(1, 3))).flags == ()


def test_a_label_may_be_abbreviated_where_no_row_has_exactly_this_label() -> None:
    rows = [Row((label, "40"), (Cell((k,)), None)) for k, label in enumerate(("xa", "x", "xb"))]
    reference = replace(CLAIM.first, labels=("x",))
    assert reference.find(result(*rows))[2].mean == 1, "an equal label comes first"
    assert reference.find(result(rows[2]))[2].mean == 2
    with pytest.raises(ValueError, match="has no cell"):
        replace(reference, labels=("a",)).find(result(*rows))


def test_a_claim_about_a_missing_cell_is_an_error() -> None:
    with pytest.raises(ValueError, match="has no cell 'c' of x in table 0"):
        decide(replace(CLAIM, first=CellReference(0, ("x",), "c")), result(one(1, 3)))


def test_the_page_shows_verdict_effect_record_and_costs(tmp_path, monkeypatch) -> None:
    folder = tmp_path / "toy"
    folder.mkdir()
    (folder / "table-9.json").write_text(result(one(1, 3)).text())
    cost = "it needs a GPU: training takes 1 s per image."
    (folder / "table-8.json").write_text(result(tables=(), not_run=cost).text())
    (folder / "stale.toml").write_text('table-9 = "Old."')
    row = {"made by": "abc", "numbers": 12, "equal": 11, "largest difference": 0.5}
    names = ["toy/table-8", "toy/table-9"]
    reruns = {"command": "run", "commit": "def", "candidates": names, "records": {names[1]: row}}
    (tmp_path / "reruns.json").write_text(json.dumps(reruns))
    ours = replace(CLAIM, claim="It is ours.", ours=True)
    monkeypatch.setattr(results_index, "PAPERS", {"toy": ("A toy", (CLAIM, ours))})
    page = results_index.write_index(tmp_path, tmp_path / "index.md").read_text()
    line = "| It works. | **confirmed**; stale record | +2.0 (+1.0 to +3.0) | 100 | net, cifar10 |"
    assert line in page
    assert "1 of 1 claim confirmed; none of 1 claim not confirmed" in page
    assert page.index("It is ours.") < page.index("## A toy") < page.index("It works.")
    assert f"- toy/table-9: {cost}" in page
    assert "`saddlepoint reproduce toy/table-9 --scale real --models FOLDER`" in page
    assert "1 of 2 records, picked at random" in page
    assert "| toy/table-9 | abc | 12 | 11 | 0.5 |" in page
    missing = replace(CLAIM, record="toy/table-7")
    monkeypatch.setattr(results_index, "PAPERS", {"toy": ("A toy", (missing,))})
    with pytest.raises(FileNotFoundError, match="which does not exist"):
        results_index.write_index(tmp_path, tmp_path / "index.md")


def test_the_committed_page_is_the_one_of_the_committed_records(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    page = Path("docs/results/index.md")
    made = results_index.write_index(Path("benchmarks/records"), tmp_path / "index.md")
    wanted = made.read_text(encoding="utf-8").replace(str(made), str(page))
    assert page.read_text(encoding="utf-8") == wanted


def test_at_least_two_results_that_no_paper_has_exclude_zero() -> None:
    records = Path(__file__).parents[2] / "benchmarks" / "records"
    claims = [claim for _, claims in results_index.PAPERS.values() for claim in claims]
    found = [
        decide(claim, read((records / f"{claim.record}.json").read_text(encoding="utf-8"), ""))
        for claim in claims
        if claim.ours
    ]
    sound = [one for one in found if one.verdict is not Verdict.NOT_CONFIRMED and not one.flags]
    assert len([one for one in sound if one.images >= 500]) >= 2
