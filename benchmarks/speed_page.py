"""Write the tables of docs/speed.md from the committed records.

    python -m benchmarks.speed_page

A table stands between `<!-- table: NAME -->` and `<!-- end of table -->`; the text around it is
written by hand. `tests/docs/test_speed_page.py` checks that the page and the records agree.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "speed.md"
RECORDS = ROOT / "benchmarks" / "records"
_MARKED = re.compile(r"(<!-- table: ([a-z-]+) -->\n).*?(<!-- end of table -->\n)", re.DOTALL)

Record = dict[str, Any]
Row = Iterable[object]


def with_tables(page: str) -> str:
    """The page with the tables of the records between its marks."""

    def table(found: re.Match[str]) -> str:
        begin, name, end = found.groups()
        file, columns, rows = TABLES[name]
        record = json.loads((RECORDS / f"{file}.json").read_text())
        lines = [columns, ("---",) * len(columns), *rows(record)]
        body = "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)
        return f"{begin}\n{body}\n\n{end}"

    return _MARKED.sub(table, page)


def exit_games(record: Record) -> Iterator[Row]:
    """Time of exit games by number of images."""
    names = {"all": "full", "double-oracle": "double oracle"}
    for key, found in record.items():
        if not key.endswith(" images"):
            continue
        for game, ratio in found["ratios"].items():
            yield names[game], key.removesuffix(" images"), found["attacks"][game], f"{ratio:.2f}"


def autoattack(record: Record) -> Iterator[Row]:
    """CPU time and robust images of audits beside AutoAttack's."""
    for name, found in record["nets"].items():
        robust = f"{found['audit_robust']} / {found['autoattack_robust']}"
        yield name, f"{found['ratio']:.3f}", robust, found["verdict"]


def growth_curves(record: Record) -> Iterator[Row]:
    """Time relative to the floor by size."""
    for found in record["curves"].values():
        ratios = [f"{row['ratio']:.2f}" for row in found["rows"]]
        yield (
            found["across"],
            ", ".join(str(row["size"]) for row in found["rows"]),
            ", ".join(ratios),
        )


# By name: the record, the columns, and the function that makes the rows.
TABLES: dict[str, tuple[str, tuple[str, ...], Callable[[Record], Iterator[Row]]]] = {
    "exit-games": (
        "exit-game-time",
        ("game", "images", "attacks", "of independent attacks and evaluations"),
        exit_games,
    ),
    "autoattack": (
        "autoattack-time",
        ("network", "time, of AutoAttack's", "robust images, audit / AutoAttack", "verdict"),
        autoattack,
    ),
    "growth-curves": ("growth-curves", ("size", "sizes", "time, of the floor"), growth_curves),
}


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
