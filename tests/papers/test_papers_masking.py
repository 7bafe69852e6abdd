"""Masked cells, caveats about few images, and the names of reduced attacks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from saddlepoint.papers.budgets import AutoAttackBudget, stated_budgets
from saddlepoint.papers.comparison import Agreement
from saddlepoint.papers.few_images import (
    CAVEAT,
    few_images_caveat,
    few_images_caveats,
    interval_half_width,
)
from saddlepoint.papers.markdown import READING, result_markdown, table_markdown
from saddlepoint.papers.masking import mark_masked, masked_columns, masked_warnings
from saddlepoint.papers.multi_exit import published
from saddlepoint.papers.multi_exit.conclude import conclude
from saddlepoint.papers.multi_exit.effects import compare_difference, difference
from saddlepoint.papers.multi_exit.scales import SETTINGS
from saddlepoint.papers.multi_exit.table_3 import findings
from saddlepoint.papers.result import Cell, Result, Row, Table

SMALL = SETTINGS["small"]
# Means of two networks under clean images and six attacks, 50 images each. The gradients of the
# first network are masked.
MASKED = (98.0, 64.0, 78.0, 51.0, 78.0, 10.0, 33.0)
HONEST = (100.0, 88.0, 64.0, 60.0, 64.0, 67.0, 58.0)


def table(*rows: tuple[float, ...]) -> Table:
    names = ("TRADES", "TRADES + NEED", "FAT", "FAT + NEED")
    paper = published.TABLE_3["TRADES"]
    made = tuple(
        Row((name,), tuple(Cell((v,), p) for v, p in zip(row, paper[k % 2], strict=True)))
        for k, (name, row) in enumerate(zip(names, rows, strict=False))
    )
    return Table("Accuracy, %", ("training",), ("clean", *SMALL.columns), made, 50)


def test_a_multi_step_attack_that_a_weaker_attack_beats_is_masked() -> None:
    marked = mark_masked(table(MASKED, HONEST), SMALL.weaker)
    reduced = SMALL.name("AutoAttack")
    assert masked_columns(marked, marked.rows[0]) == ["PGD-20", "PGD-100", "EoT-PGD-20", reduced]
    assert masked_columns(marked, marked.rows[1]) == []
    text = table_markdown(marked)
    assert "78.00 *masked* [47.30]" in text
    assert "10.00 [46.76]" in text
    assert "*masked* number is no robust accuracy" in READING


def test_a_difference_of_two_images_is_no_masking() -> None:
    close = (98.0, 76.0, 80.0, 76.0, 76.0, 76.0, 76.0)  # two of 50 images
    far = (98.0, 76.0, 80.1, 76.0, 76.0, 76.0, 76.0)
    weaker = SMALL.weaker
    assert not masked_columns(table(close), mark_masked(table(close), weaker).rows[0])
    assert masked_columns(table(far), mark_masked(table(far), weaker).rows[0]) == ["PGD-20"]


def test_a_warning_names_the_masked_numbers_and_the_weaker_attack() -> None:
    (warning,) = masked_warnings(mark_masked(table(MASKED, HONEST), SMALL.weaker), SMALL.weaker)
    assert "PGD-20 leaves 78.0 %" in warning
    assert "but VMI-FGSM leaves 10.0 %" in warning


def test_a_finding_does_not_report_masked_differences_as_changes() -> None:
    marked = mark_masked(table(MASKED, HONEST, HONEST, HONEST), SMALL.weaker)
    masked, plain, *_ = findings(marked)
    assert "+57" not in masked
    assert "lowest accuracy over all attacks is 10.00 % without NEED and 58.00 % with it" in masked
    assert plain.startswith("FAT: change of the accuracy with NEED")
    assert not any("TRADES" in other for other in findings(marked)[1:])


def test_autoattack_has_its_name_only_with_the_standard_budget() -> None:
    assert AutoAttackBudget().title == "AutoAttack"
    assert AutoAttackBudget(10, 1, 50).title == "APGD+FAB+Square (10 steps, 1 target, 50 queries)"
    assert "AutoAttack" in SETTINGS["paper"].columns
    for scale in ("tiny", "small"):
        assert "AutoAttack" not in SETTINGS[scale].columns
        assert "AutoAttack" not in SETTINGS[scale].name("AutoAttack")
    assert "PGD-20" not in SETTINGS["tiny"].columns, "it has one step there"


@pytest.mark.parametrize("label", ["static, AutoAttack", "AA, max-loss points", "DENT-AA"])
def test_a_page_warns_of_a_reduced_autoattack(label: str) -> None:
    numbers = Table("T", ("row",), (label,), (Row(("a",), (Cell((1.0,)),)),), 50)

    def shown(*budgets: AutoAttackBudget, table: Table = numbers) -> str:
        notes = tuple(f"on static networks: {budget}; more" for budget in budgets)
        result = Result("p/t", "T", "R", "small", 0, 1, "c", (table,), notes, (), 0, 0, 0, {})
        return result_markdown(result)

    reduced = AutoAttackBudget(15, 2, 60)
    assert stated_budgets(str(reduced)) == [reduced]
    assert stated_budgets("AutoAttack with 1 step, 1 target and 1 query") == [
        AutoAttackBudget(1, 1, 1)
    ]
    warning = "> **Warning.** AutoAttack (AA) in these tables is not the standard one, but "
    assert f"{warning}{reduced.title}." in shown(reduced)
    assert "Warning" not in shown(AutoAttackBudget())
    assert "Warning" not in shown(reduced, table=replace(numbers, columns=("PGD",)))
    assert f"{reduced.title} or {AutoAttackBudget(5, 1, 10).title}" in shown(
        reduced, AutoAttackBudget(5, 1, 10)
    )


def test_findings_from_few_images_have_a_caveat_with_the_interval() -> None:
    """1.96 sqrt(1/4 / 12) = 0.283."""
    caveat = few_images_caveat(12)
    assert caveat is not None
    assert "12 images" in caveat
    assert "from 22 to 78 %" in caveat
    assert few_images_caveat(10_000) is None
    assert interval_half_width(50.0, 12) == pytest.approx(28.29, abs=0.01)
    assert interval_half_width(100.0, 12) == 0


def test_a_caveat_about_some_tables_names_them() -> None:
    def tables(*numbers: int) -> list[Table]:
        return [Table(f"T{k}", (), (), (), n) for k, n in enumerate(numbers, start=1)]

    (alone,) = few_images_caveats(tables(64, 64))
    assert alone == few_images_caveat(64)
    few, others = few_images_caveats(tables(300, 300, 64))
    assert few.startswith('Findings from the table "T3" come from 64 images')
    assert others.startswith("All other findings come from 300 images")
    (few,) = few_images_caveats(tables(10_000, 64, 64))
    assert few.startswith('Findings from the tables "T2" and "T3" come from 64 images')
    assert all(CAVEAT.match(text) for text in (alone, few, others))


def test_differences_are_compared_with_the_paper_in_direction_and_size() -> None:
    far = difference(Cell((80.0,)), Cell((60.0,)), 10_000)
    assert far.low < far.value == 20.0 < far.high < 21.4
    against = compare_difference(Cell((60.0,), 80.0), Cell((80.0,), 60.0), 10_000)
    assert against is not None
    assert "against the paper" in against.text
    assert compare_difference(Cell((60.0,)), Cell((80.0,), 60.0), 10) is None


@pytest.mark.parametrize("level", [0.0, 100.0])
def test_few_images_that_all_agree_do_not_show_that_an_effect_is_absent(level: float) -> None:
    """With 50 images at 0 or 100 % a Wilson interval ends 7.1 points away."""
    equal = compare_difference(Cell((level,), 12.0), Cell((level,), 10.0), 50)
    assert equal is not None
    assert equal.agreement is Agreement.UNDECIDED
    found = difference(Cell((level,)), Cell((level,)), 50)
    assert (found.low, found.value, found.high) == pytest.approx((-7.13, 0.0, 7.13), abs=0.01)


def test_conclusions_are_drawn_again_from_stored_numbers() -> None:
    old = replace(table(MASKED, HONEST), columns=("clean", *published.ATTACKS))
    stored = Result(
        "multi-exit/table-3", "T", "R", "small", 0, 2, "c", (old,), (), ("+57",), 0, 0, 0, {}
    )
    again = conclude(stored)
    assert again.tables[0].columns == ("clean", *SMALL.columns)
    assert [row.cells[2].mean for row in again.tables[0].rows if row.cells[2]] == [78.0, 64.0]
    assert "come from 50 images" in again.findings[0]
    assert "gradients are masked" in again.symptoms[0]
    assert "+57" not in again.findings
    assert conclude(again) == again


def test_the_conclusions_of_the_out_of_sample_record_name_reduced_attacks_and_equal_results() -> (
    None
):
    strategies = Table("net", ("strategy",), ("clean",), (Row(("NEED",), (Cell((48.0,)),)),), 100)
    cells = (Cell((34.0,), 55.92), Cell((30.0,), 42.40))
    names = ("Max-average attack", "AIMER")
    rows = tuple(Row((name,), (cell, cell)) for name, cell in zip(names, cells, strict=True))
    copies = Table(
        "copies", ("evaluation",), ("AutoAttack, clean copies", "clean copies among"), rows, 50
    )
    equal = [
        f"net, {attacker}: NEED minus per-image mix is +0.0 points (+0.0 to +0.0), not significant."
        for attacker in ("AIMER", "expected-loss attack")
    ]
    other = "net, AIMER: NEED minus last exit is +4.1 points (+0.1 to +8.3)."
    gap = "AutoAttack, clean copies: ... minus that under AIMER is +4.00 points."
    notes = ("AutoAttack with 10 steps, 1 target and 50 queries; the rest",)
    stored = Result(
        "multi-exit/out-of-sample",
        *("T", "R", "small", 0, 2, "c", (strategies, copies), notes, (*equal, other, gap)),
        *(0, 0, 0, {}),
    )
    again = conclude(stored)
    reduced = f"{SMALL.name('AutoAttack')}, clean copies"
    assert again.tables[1].columns == (reduced, "clean copies among")
    assert again.findings[2:4] == (
        "net: NEED and per-image mix have the same result on every test image.",
        other,
    )
    assert again.findings[4].startswith(f"{reduced}: ")
    assert 'the table "copies" come from 50 images' in again.findings[0]
    assert "come from 100 images" in again.findings[1]
    assert again.notes == (SMALL.budgets,)
    assert conclude(again) == again
