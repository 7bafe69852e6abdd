"""Self-tests as a record, and as a page that is written from the record alone."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from saddlepoint.schema import Migrations, migrated
from saddlepoint.selftests.families import CASES, FAMILIES
from saddlepoint.selftests.score import TOLERANCE, SelfTest

SCHEMA = 1
_MIGRATIONS: Migrations = {}
_INTRO = f"""# Who finds the truth

Each row is a defense whose true robust accuracy is known in closed form or by exhaustion (`saddlepoint.selftest`): 100 images of
64 or 16 pixels, perturbed in Linf. Every evaluator reports a robust accuracy in percent. Printed plainly, it is within
{100 * TOLERANCE:g} points of the truth, or its interval holds the truth of a random defense. **Bold** is wrong, and the evaluator
stands by it; ***bold and slanted*** is wrong, and the evaluator says itself that it may be; – is an error, an empty cell was not
run. Too low is wrong as well: points that fooled by luck, or another model than the one that was handed over."""


def record(tests: Sequence[SelfTest], command: str = "saddlepoint selftest") -> dict[str, Any]:
    """Plain values."""
    return {"schema": SCHEMA, "tests": [{**test.record(), "command": command} for test in tests]}


def write(kept: Mapping[str, Any], out: Path) -> dict[str, Any]:
    """The record, kept at `out` with what the file held before: other evaluators, and other cases of the same one.

    A case is a new model with coins of its own, so that a record may be made in parts, in any order.
    """
    tests = {test["evaluator"]: test for test in read(out)["tests"]} if out.exists() else {}
    for test in kept["tests"]:
        lines = {
            line["case"]: line
            for line in (*tests.get(test["evaluator"], {"lines": ()})["lines"], *test["lines"])
        }
        order = {case.name: place for place, case in enumerate(CASES)}
        tests[test["evaluator"]] = {
            **test,
            "lines": sorted(lines.values(), key=lambda line: order.get(line["case"], len(order))),
        }
    whole = {**kept, "tests": list(tests.values())}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(whole, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return whole


def read(file: Path) -> dict[str, Any]:
    """What `write` wrote; a record that this version cannot read is refused."""
    return migrated(json.loads(file.read_text(encoding="utf-8")), _MIGRATIONS, SCHEMA, str(file))


def text(kept: Mapping[str, Any]) -> str:
    """The page: one table for each family of cases, evaluators side by side."""
    tests = kept["tests"]
    lines = {test["evaluator"]: {line["case"]: line for line in test["lines"]} for test in tests}
    parts = [_INTRO, *_summary(tests)]
    for family, cases in FAMILIES.items():
        ran = [case for case in cases if any(case.name in of for of in lines.values())]
        if ran:
            head = ["case", "truth", *lines]
            rows = [
                [
                    f"{case.name}: {case.why}",
                    _truth(lines, case.name),
                    *(_said(of.get(case.name)) for of in lines.values()),
                ]
                for case in ran
            ]
            parts += [f"## {family.capitalize()}", _table(head, rows)]
    parts += [f"{test['evaluator']}: {test['note']}" for test in tests if test.get("note")]
    versions: dict[str, str] = {}
    for test in tests:
        versions |= test["versions"]
    commands = ", ".join(
        f"`{command}`" for command in dict.fromkeys(test["command"] for test in tests)
    )
    parts.append(
        f"Made by {commands} with {', '.join(f'{name} {number}' for name, number in versions.items())}."
    )
    return "\n\n".join(parts) + "\n"


def _summary(tests: Sequence[Mapping[str, Any]]) -> list[str]:
    head = [
        "evaluator",
        "right",
        "too high, stands by it",
        "too high, says so",
        "too low",
        "failed",
        "CPU seconds",
    ]
    rows = []
    for test in tests:
        outcomes = [line["outcome"] for line in test["lines"]]
        believed = sum(line["deceived"] for line in test["lines"])
        counts = [
            believed,
            outcomes.count("too high") - believed,
            outcomes.count("too low"),
            outcomes.count("failed"),
        ]
        spent = [line["seconds"] for line in test["lines"]]
        seconds = "–" if None in spent else f"{sum(spent):.0f}"
        rows.append(
            [
                test["evaluator"],
                f"{outcomes.count('right')} of {len(outcomes)}",
                *map(str, counts),
                seconds,
            ]
        )
    return [_table(head, rows)]


def _truth(lines: Mapping[str, Mapping[str, Any]], case: str) -> str:
    truth = next(of[case]["truth"] for of in lines.values() if case in of)
    shown = f"{100 * truth['low']:.1f}" + (
        f" to {100 * truth['high']:.1f}" if truth["low"] != truth["high"] else ""
    )
    return shown + (", random" if truth["random"] else "")


def _said(line: Mapping[str, Any] | None) -> str:
    if line is None:
        return ""
    if line["report"] is None:
        return "–"
    number = f"{100 * line['report']['robust_accuracy']:.1f}"
    if line["outcome"] == "right":
        return number
    return f"**{number}**" if line["report"]["holds"] else f"***{number}***"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [list(head), ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
