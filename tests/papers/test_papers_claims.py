"""Claims: verdicts from intervals, flags, and the page that lists them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from saddlepoint.papers import results_index
from saddlepoint.papers.adaptive.reductions import LABEL, NONE
from saddlepoint.papers.claims import CellReference, Claim, Premise, Strategies
from saddlepoint.papers.result import Cell, Result, Row, Table, read
from saddlepoint.papers.verdicts import Verdict, decide


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


def test_a_published_level_is_compatible_if_it_is_in_the_interval_and_never_confirmed() -> None:
    level = replace(CLAIM, expected="published")
    verdicts = [decide(level, result(one(1, 3, paper=p))).verdict for p in (3.5, 2.5, 0.5)]
    assert verdicts == [Verdict.CONTRADICTED, Verdict.COMPATIBLE, Verdict.CONTRADICTED]


def test_an_attack_that_leaves_less_than_the_published_accuracy_is_confirmed_to_break() -> None:
    at_most = replace(CLAIM, expected="at most")
    verdicts = [decide(at_most, result(one(1, 3, paper=p))).verdict for p in (3.5, 2.5, 0.5)]
    assert verdicts == [Verdict.CONFIRMED, Verdict.COMPATIBLE, Verdict.CONTRADICTED]


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (-1.0, 3.0, Verdict.COMPATIBLE),
        (0.0, 3.0, Verdict.COMPATIBLE),
        (1.0, 3.0, Verdict.CONTRADICTED),
        (-3.0, -1.0, Verdict.CONTRADICTED),
    ],
)
def test_no_effect_is_compatible_with_an_interval_around_zero(low, high, verdict) -> None:
    assert decide(replace(CLAIM, expected="zero"), result(one(low, high))).verdict is verdict


@pytest.mark.parametrize(
    ("exceptions", "verdict"), [(0.0, Verdict.COMPATIBLE), (1.0, Verdict.NOT_CONFIRMED)]
)
def test_one_exception_is_enough_not_to_confirm_a_claim_without_exceptions(
    exceptions, verdict
) -> None:
    never = replace(CLAIM, expected="never", second=CellReference(0, ("x",), "b"))
    found = decide(never, result(Row(("x", "40"), (Cell((exceptions,)), Cell((182.0,))))))
    assert found.verdict is verdict
    assert (found.effect.value, found.cases, found.flags) == (exceptions, 182, ())


@pytest.mark.parametrize(("low", "high"), [(1.0, 3.0), (-3.0, -1.0)])
def test_an_unmet_premise_is_the_verdict_whatever_the_effect(low, high) -> None:
    claim = replace(CLAIM, premise=Premise("the paper has other data"))
    found = decide(claim, result(one(low, high)))
    assert found.verdict is Verdict.PREMISE_NOT_MET
    assert found.reason == "the paper has other data"


def test_a_premise_about_a_cell_is_met_from_its_least_number_on() -> None:
    residual = CellReference(0, ("x",), "b")  # 30
    met = Premise("it is {:.2g}", residual, 30.0)
    claims = [replace(CLAIM, premise=one) for one in (met, replace(met, least=30.1))]
    found = [decide(claim, result(one(1, 3))) for claim in claims]
    assert [one.verdict for one in found] == [Verdict.CONFIRMED, Verdict.PREMISE_NOT_MET]
    assert [one.reason for one in found] == ["", "it is 30"]


@pytest.mark.parametrize(
    ("exits", "verdict"),
    [
        (("4+5", "4+5"), Verdict.NOT_TESTABLE),
        (("7", "7"), Verdict.NOT_TESTABLE),
        (("4+5", "5"), Verdict.CONFIRMED),
        (("5 sets", "5 sets"), Verdict.CONFIRMED),  # mixed strategies may differ
    ],
)
def test_a_comparison_of_a_fixed_set_with_itself_is_not_testable(exits, verdict) -> None:
    rows = [Row((name, of), (Cell((50.0,)), None)) for name, of in zip("yz", exits, strict=True)]
    first, second = (CellReference(0, (name,), "a") for name in "yz")
    found = decide(replace(CLAIM, strategies=Strategies(first, second)), result(one(1, 3), *rows))
    assert found.verdict is verdict
    assert found.reason == (f"both are exits {exits[0]}" if verdict.value == "not testable" else "")


def test_reduced_budgets_are_quoted_from_the_record() -> None:
    quoting = replace(CLAIM, quotes=(r"Square with [^;,]*queries",))
    notes = ("PGD with 10 steps; Square with 150 of 5000 queries; more", "another note")
    assert decide(quoting, result(one(1, 3), notes=notes)).quotes == (
        "Square with 150 of 5000 queries",
    )
    with pytest.raises(ValueError, match="no note of toy/table-9 matches"):
        decide(quoting, result(one(1, 3)))


@pytest.mark.parametrize(("label", "quotes"), [("2 of 100", ("reduced: 2 of 100",)), (NONE, ())])
def test_reduced_hyper_parameters_of_a_row_are_quoted(label, quotes) -> None:
    table = Table("T", ("defense", LABEL), ("a",), (Row(("x", label), (Cell((1.0,)),)),), 100)
    assert decide(CLAIM, result(tables=(table,))).quotes == quotes


def test_the_papers_effect_may_be_given_or_withheld() -> None:
    row = one(1, 3, paper=9.0)
    assert decide(CLAIM, result(row)).published == 9.0
    assert decide(replace(CLAIM, published=4.0), result(row)).published == 4.0
    assert decide(replace(CLAIM, comparable=False), result(row)).published is None


def test_a_cell_about_half_of_the_images_has_a_wider_interval() -> None:
    row = Row(("x", "40"), (Cell((50.0,)), None))
    whole, half = (decide(replace(CLAIM, share=s), result(row)) for s in (1.0, 0.5))
    assert (whole.images, half.images) == ((100,), (50,))
    assert half.effect.low < whole.effect.low


def test_different_numbers_of_images_are_both_shown() -> None:
    rows = tuple(Row((name, f"{n}"), (Cell((50.0,)), None)) for name, n in (("x", 512), ("y", 64)))
    claim = replace(CLAIM, second=CellReference(0, ("y",), "a"))
    assert decide(claim, result(*rows, n=0)).images == (512, 64)


def test_a_difference_has_an_interval_over_images_and_the_papers_difference() -> None:
    row = Row(("x", "40"), (Cell((80.0,), 70.0), Cell((30.0,), 10.0)))
    found = decide(replace(CLAIM, second=CellReference(0, ("x",), "b")), result(row))
    assert found.effect.value == pytest.approx(50.0)
    assert 30 < found.effect.low < 50 < found.effect.high < 65
    assert (found.published, found.images) == (pytest.approx(60.0), (100,))


def test_few_images_weak_bases_and_masked_cells_are_flagged() -> None:
    row = one(1, 3, masked=True)
    base = replace(CLAIM, base=CellReference(0, ("x",), "b"))
    found = decide(base, result(row, n=0))
    assert found.images == (40,)
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


def test_the_page_shows_reasons_quotes_counts_and_images(tmp_path, monkeypatch) -> None:
    folder = tmp_path / "toy"
    folder.mkdir()
    rows = (one(1, 3), Row(("y", "40"), (Cell((2.0,)), Cell((8.0,)))))
    made = result(*rows, notes=("RayS 500 queries",))
    (folder / "table-9.json").write_text(made.text())
    unmet = replace(CLAIM, premise=Premise("other data"), quotes=("RayS .*",))
    counted = CellReference(0, ("y",), "b")
    never = replace(
        CLAIM, first=replace(CLAIM.first, labels=("y",)), second=counted, expected="never"
    )
    monkeypatch.setattr(results_index, "PAPERS", {"toy": ("A toy", (unmet, never))})
    page = results_index.write_index(tmp_path, tmp_path / "index.md").read_text()
    assert "| **premise not met**: other data; RayS 500 queries | +2.0 (+1.0 to +3.0) |" in page
    assert "| **not confirmed** | 2 of 8 cases | 100 |" in page
    assert "2 claims: 0 confirmed, 0 compatible, 1 not confirmed, 0 contradicted, 1 prem" in page


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
    assert (
        "1 claim: 1 confirmed, 0 compatible, 0 not confirmed, 0 contradicted, 0 premise not met, "
        "0 not testable."
    ) in page
    assert "- *AIMER*: " in page
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
    excluded = (Verdict.CONFIRMED, Verdict.CONTRADICTED)
    sound = [one for one in found if one.verdict in excluded and not one.flags]
    assert len([one for one in sound if min(one.images) >= 500]) >= 2


def test_no_claim_needs_the_row_above_it() -> None:
    claims = [claim for _, claims in results_index.PAPERS.values() for claim in claims]
    assert not [claim.claim for claim in claims if claim.claim.startswith("The same")]


def test_a_claim_about_a_static_base_has_its_clean_accuracy() -> None:
    _, claims = results_index.PAPERS["transductive"]
    dann = [claim for claim in claims if claim.claim.startswith("DANN")]
    assert {claim.base.column for claim in dann if claim.base} == {"Standard, clean"}
