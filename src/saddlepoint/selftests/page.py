"""Saves self-test results as a JSON record, and renders the record as a Markdown page."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from saddlepoint.schema import Migrations, migrated
from saddlepoint.selftests.case import Case
from saddlepoint.selftests.families import CASES, FAMILIES
from saddlepoint.selftests.score import TOLERANCE, SelfTest

SCHEMA = 1
_MIGRATIONS: Migrations = {}
_INTRO = f"""# Evaluators compared on defenses with known robust accuracy

Each row is a defense with a true robust accuracy that is known in closed form or by exhaustive
search (`saddlepoint.selftest`): 100 images of 64 or 16 pixels, perturbed in Linf. Every evaluator
reports a robust accuracy in percent. A number in plain type is within {100 * TOLERANCE:g} points of
the truth, or its interval contains the truth of a randomized defense. A number in **bold** is wrong
and the evaluator gives no warning. A number in ***bold italics*** is wrong and the evaluator warns
that it may be. A dash (–) means that the evaluator raised an error; an empty cell was not run. A
number that is too low is wrong as well: the evaluator counted points that a randomized defense
misclassified by chance, or it evaluated a different model than the one it received."""
_BY_MECHANISM = """By mechanism that misleads evaluations: the number of cases with a right report,
and in brackets the number of those with too high a report and no warning."""


def record(tests: Sequence[SelfTest], command: str = "saddlepoint selftest") -> dict[str, Any]:
    """The results as JSON data, with the command that produced them."""
    return {"schema": SCHEMA, "tests": [{**test.record(), "command": command} for test in tests]}


def write(kept: Mapping[str, Any], out: Path) -> dict[str, Any]:
    """Merge a record into a file and return the merged record.

    Other evaluators in the file are kept, and other cases of the same evaluator. Every case uses a
    new model and its own random stream, so a record can be written in parts, in any order.

    Args:
        kept: The record.
        out: The file; it is created if it does not exist.
    """
    tests = {test["evaluator"]: test for test in read(out)["tests"]} if out.exists() else {}
    for test in kept["tests"]:
        earlier = tests.get(test["evaluator"], {"lines": ()})["lines"]
        tests[test["evaluator"]] = {**test, "lines": _merged(earlier, test["lines"])}
    whole = {**kept, "tests": list(tests.values())}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(whole, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return whole


def read(file: Path) -> dict[str, Any]:
    """Read a record that `write` wrote.

    Raises:
        SchemaError: This version cannot read the record.
    """
    return migrated(json.loads(file.read_text(encoding="utf-8")), _MIGRATIONS, SCHEMA, str(file))


def text(kept: Mapping[str, Any]) -> str:
    """Render a record as Markdown: one table per mechanism, one column per evaluator."""
    tests = kept["tests"]
    lines = {test["evaluator"]: {line["case"]: line for line in test["lines"]} for test in tests}
    parts = [_INTRO, _summary(tests), _by_mechanism(lines), *_family_tables(lines)]
    parts += [f"{test['evaluator']}: {test['note']}" for test in tests if test.get("note")]
    parts.append(_provenance(tests))
    return "\n\n".join(parts) + "\n"


def _merged(
    earlier: Sequence[Mapping[str, Any]], new: Sequence[Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    """New lines replace earlier lines of the same case; sorted in the order of `CASES`."""
    lines = {line["case"]: line for line in (*earlier, *new)}
    order = {case.name: index for index, case in enumerate(CASES)}
    return sorted(lines.values(), key=lambda line: order.get(line["case"], len(order)))


def _by_mechanism(lines: Mapping[str, Mapping[str, Any]]) -> str:
    """A table of right cases per mechanism; `lines` is by evaluator and case."""
    rows = [
        [family, *(_right_of(by_case, cases) for by_case in lines.values())]
        for family, cases in FAMILIES.items()
    ]
    return f"{_BY_MECHANISM}\n\n{_table(['mechanism', *lines], rows)}"


def _right_of(by_case: Mapping[str, Any], cases: Sequence[Case]) -> str:
    """How many of these cases an evaluator gets right, and how many deceive it."""
    found = [by_case[case.name] for case in cases if case.name in by_case]
    if not found:
        return ""
    right = sum(line["outcome"] == "right" for line in found)
    deceived = sum(line["deceived"] for line in found)
    shown = f"{right} of {len(found)}"
    return f"{shown} ({deceived})" if deceived else shown


def _family_tables(lines: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A heading and a table for each family with results; `lines` is by evaluator and case."""
    parts = []
    head = ["case", "truth", *lines]
    for family, cases in FAMILIES.items():
        rows = [
            [
                f"{case.name}: {case.why}",
                _truth(lines, case.name),
                *(_reported(by_case.get(case.name)) for by_case in lines.values()),
            ]
            for case in cases
            if any(case.name in by_case for by_case in lines.values())
        ]
        if rows:
            parts += [f"## {family.capitalize()}", _table(head, rows)]
    return parts


def _provenance(tests: Sequence[Mapping[str, Any]]) -> str:
    """The commands that produced the records, each with its package versions."""
    made: dict[str, dict[str, str]] = {}
    for test in tests:
        made.setdefault(test["command"], {}).update(test["versions"])
    texts = [
        f"`{command}` with {', '.join(f'{name} {number}' for name, number in versions.items())}"
        for command, versions in made.items()
    ]
    return f"Made by {'; '.join(texts)}."


def _summary(tests: Sequence[Mapping[str, Any]]) -> str:
    head = [
        "evaluator",
        "right",
        "too high, no warning",
        "too high, with a warning",
        "too low",
        "failed",
        "CPU seconds",
    ]
    return _table(head, [_summary_row(test) for test in tests])


def _summary_row(test: Mapping[str, Any]) -> list[str]:
    outcomes = [line["outcome"] for line in test["lines"]]
    without_warning = sum(line["deceived"] for line in test["lines"])
    counts = [
        without_warning,
        outcomes.count("too high") - without_warning,
        outcomes.count("too low"),
        outcomes.count("failed"),
    ]
    spent = [line["seconds"] for line in test["lines"]]
    seconds = "–" if None in spent else f"{sum(spent):.0f}"
    right = f"{outcomes.count('right')} of {len(outcomes)}"
    return [test["evaluator"], right, *map(str, counts), seconds]


def _truth(lines: Mapping[str, Mapping[str, Any]], case: str) -> str:
    truth = next(by_case[case]["truth"] for by_case in lines.values() if case in by_case)
    shown = f"{100 * truth['low']:.1f}"
    if truth["low"] != truth["high"]:
        shown += f" to {100 * truth['high']:.1f}"
    return shown + (", random" if truth["random"] else "")


def _reported(line: Mapping[str, Any] | None) -> str:
    """The number of one cell, formatted by its outcome."""
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
