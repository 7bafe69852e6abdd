"""`saddlepoint selftest`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from saddlepoint.cli.console import dump, examples, output, percent, say, table, tell
from saddlepoint.cli.options import Budget

if TYPE_CHECKING:
    from saddlepoint.selftests import Line

_WRONG = 1  # exit code of an evaluator that missed a truth


class Who(StrEnum):
    ours = "ours"
    autoattack = "autoattack"
    autoattack_rand = "autoattack-rand"
    torchattacks = "torchattacks"
    foolbox = "foolbox"
    art = "art"


def add(app: typer.Typer) -> None:
    app.command(
        "selftest",
        epilog=examples(
            "saddlepoint selftest",
            'saddlepoint selftest --case "gradient killer" --case "lucky noise"',
            "saddlepoint selftest --evaluator autoattack --evaluator foolbox --out selftest.json",
            "saddlepoint selftest --list",
            note="Any evaluator can be scored: saddlepoint.selftest(evaluator) with a function (model, x, y, radius) -> accuracy.",
        ),
    )(selftest)


def selftest(
    case: Annotated[
        list[str] | None,
        typer.Option("--case", help="One case; may be given again.", show_default="all"),
    ] = None,
    evaluator: Annotated[
        list[Who] | None,
        typer.Option(
            help="Who is tested; may be given again.", show_default="ours", case_sensitive=False
        ),
    ] = None,
    budget: Annotated[
        Budget, typer.Option(help="Of our own audits.", case_sensitive=False)
    ] = Budget.standard,
    listed: Annotated[
        bool, typer.Option("--list", help="Say what the cases are, and stop.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Keep the record; what the file holds of others stays.", metavar="FILE.json"
        ),
    ] = None,
    page: Annotated[
        Path | None, typer.Option(help="Write the record as a page.", metavar="FILE.md")
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print the record as JSON, and nothing else.")
    ] = False,
) -> None:
    """Attack defenses whose robust accuracy is known, and compare: does the evaluator find the truth, and say so if not?"""
    from saddlepoint.selftests import CASES
    from saddlepoint.selftests.page import record, text, write
    from saddlepoint.selftests.peers import evaluators
    from saddlepoint.selftests.score import chosen
    from saddlepoint.selftests.score import selftest as test

    if listed:
        output().print(table(("case", "why"), [[one.name, one.why] for one in CASES]))
        return
    chosen(case or [])
    asked = evaluators([who.value for who in evaluator or [Who.ours]], budget.value)
    found = [test(one, case or (), progress=None if json else _progress) for one in asked]
    kept = record(found, _command(evaluator or [Who.ours], budget))
    kept = kept if out is None else write(kept, out)
    if page is not None:
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(text(kept), encoding="utf-8")
    if json:
        dump(kept)
    else:
        for one in found:
            say(one.summary(), style="bold")
    if not all(one.passed for one in found):
        raise typer.Exit(_WRONG)


def _progress(line: Line) -> None:
    said = "failed" if line.report is None else percent(line.report.robust_accuracy)
    told = "deceived" if line.deceived else line.outcome
    tell(
        f"{line.case}: truth {line.truth} %, said {said}: {told}{f' ({line.error})' if line.error else ''}"
    )


def _command(who: list[Who], budget: Budget) -> str:
    """Without cases: each is independent of the others, so that the record of some is a part of the record of all."""
    spent = f" --budget {budget.value}" if budget != Budget.standard else ""
    return "saddlepoint selftest" + "".join(f" --evaluator {one.value}" for one in who) + spent
