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


def growth(record: Record) -> Iterator[Row]:
    """CPU seconds and memory of audits by number of images."""
    found = record["growth"]
    columns = (found["images"], found["cpu_seconds"], found["peak_megabytes"])
    for images, seconds, megabytes in zip(*columns, strict=True):
        yield f"{images:,}", f"{seconds:.1f} s", f"{megabytes} MB"


def workers(record: Record) -> Iterator[Row]:
    """Wall time of one process and of two workers."""
    found = record["workers"]
    for one, two in found["wall_seconds"]:
        yield found["net"], found["images"], f"{one:.1f} s", f"{two:.1f} s", f"{one / two:.2f}"


def whole_audits(record: Record) -> Iterator[Row]:
    """Time of whole audits and its shares."""
    for row in record["audits"]:
        shares = [f"{row[f'share_of_{part}']:.1%}" for part in ("probe", "diagnose", "rest")]
        ratio = f"{row['ratio_to_attack_passes']:.2f}"
        cost = f"{row['milliseconds_per_gradient']:.2f} ms"
        yield row["net"], row["images"], f"`{row['budget']}`", cost, ratio, *shares


def loops(record: Record) -> Iterator[Row]:
    """Time of attack loops relative to a bare loop."""
    for net, found in record.items():
        for attack, measured in found.items():
            if isinstance(measured, dict) and attack != "peers":
                yield net, attack, f"{measured['ratio']:.2f}", _spread(measured["ratios"])


def peers(record: Record) -> Iterator[Row]:
    """Time of attack loops relative to the fastest peer."""
    for net, found in record.items():
        for attack, measured in found.get("peers", {}).items():
            fastest = measured["fastest"]
            ratios = measured["ratios"][fastest]
            yield net, attack, fastest, f"{measured['ratio']:.2f}", _spread(ratios)


def _spread(ratios: list[float]) -> str:
    return f"{min(ratios):.2f} to {max(ratios):.2f}"


def engine(record: Record) -> Iterator[Row]:
    """Time of attacks on a folded copy, relative to the given net and to the fastest peer."""
    for name, found in record.items():
        for attack, given in found["timed"].items():
            beside = found.get("peers", {}).get(attack)
            peer = ("not measured",) * 3
            if beside is not None:
                whole, stopped = beside["ratio"], beside["until_success"]["ratio"]
                peer = (beside["fastest"], f"{whole:.2f}", f"{stopped:.2f}")
            yield name, f"{attack}, {found['threat']}", f"{given['ratio']:.2f}", *peer


# By name: the record, the columns, and the function that makes the rows.
TABLES: dict[str, tuple[str, tuple[str, ...], Callable[[Record], Iterator[Row]]]] = {
    "exit-games": (
        "exit-game-time",
        ("game", "images", "attacks", "time / independent attacks and evaluations"),
        exit_games,
    ),
    "autoattack": (
        "autoattack-time",
        ("network", "time / AutoAttack", "robust images, audit / AutoAttack", "verdict"),
        autoattack,
    ),
    "whole-audits": (
        "overhead",
        (
            "network",
            "images",
            "budget",
            "a gradient",
            "time / attack passes",
            "probing",
            "diagnostics",
            "rest",
        ),
        whole_audits,
    ),
    "loops": ("loops", ("network", "attack", "time / bare loop", "spread"), loops),
    "peers": (
        "loops",
        ("network", "attack", "fastest peer", "time / fastest peer", "spread"),
        peers,
    ),
    "engine": (
        "engine",
        (
            "network",
            "attack",
            "time / given network",
            "fastest peer",
            "time / fastest peer, all steps",
            "time / fastest peer, stop at success",
        ),
        engine,
    ),
    "growth": ("growth", ("images", "CPU time", "peak memory"), growth),
    "workers": (
        "growth",
        ("network", "images", "one process", "two workers", "speedup"),
        workers,
    ),
    "growth-curves": ("growth-curves", ("size", "sizes", "time / floor"), growth_curves),
}


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
