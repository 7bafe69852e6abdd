"""The tables of docs/speed.md are those of the committed records."""

from __future__ import annotations

from benchmarks.speed_page import PAGE, TABLES, engine, loops, peers, with_tables


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


LOOPS = {
    "a net": {
        "steps": 20,
        "PGD, Linf radius 1": {"ratio": 1.1, "ratios": [1.0, 1.1, 1.3]},
        "peers": {
            "PGD, Linf radius 1": {
                "fastest": "b",
                "ratio": 0.95,
                "ratios": {"a": [0.5, 0.6], "b": [0.9, 1.0]},
            }
        },
    }
}


def test_peers_are_not_among_the_ratios_to_a_bare_loop() -> None:
    assert list(loops(LOOPS)) == [("a net", "PGD, Linf radius 1", "1.10", "1.00 to 1.30")]


def test_the_spread_is_that_of_the_fastest_peer() -> None:
    assert list(peers(LOOPS)) == [("a net", "PGD, Linf radius 1", "b", "0.95", "0.90 to 1.00")]


def test_a_net_without_peers_says_so() -> None:
    ratios = {"PGD-20": {"ratio": 0.8}, "APGD-100": {"ratio": 0.9}}
    missing = ("not measured",) * 3
    record = {"a net": {"threat": "Linf radius 1/255", "form": "folded", "timed": ratios}}
    assert list(engine(record)) == [
        ("a net", "PGD-20, Linf radius 1/255", "0.80", *missing),
        ("a net", "APGD-100, Linf radius 1/255", "0.90", *missing),
    ]
