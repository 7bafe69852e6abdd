"""The tables of docs/speed.md are those of the committed records."""

from __future__ import annotations

from benchmarks.speed_page import PAGE, TABLES, with_tables


def test_the_tables_of_the_page_are_those_of_the_records() -> None:
    page = PAGE.read_text()
    assert with_tables(page) == page


def test_every_table_is_on_the_page() -> None:
    page = PAGE.read_text()
    assert [name for name in TABLES if f"<!-- table: {name} -->" not in page] == []


def test_a_changed_number_is_noticed() -> None:
    page = PAGE.read_text()
    changed = page.replace("| full | 8 | 127 | 0.15 |", "| full | 8 | 127 | 0.14 |")
    assert changed != page
    assert with_tables(changed) == page
