"""`saddlepoint selftest`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from saddlepoint.cli.arguments import JsonOption
from saddlepoint.cli.console import dump, examples, note, output, percent, say, table
from saddlepoint.cli.options import some_audit_options, with_options

if TYPE_CHECKING:
    from saddlepoint.audits.planning.budget import Budget
    from saddlepoint.selftests import Line, SelfTest

_FAILED = 1  # exit code if an evaluator missed a known robust accuracy


def add(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(
        "selftest",
        cls=with_options(some_audit_options("budget", "seed")),
        epilog=examples(
            "saddlepoint selftest",
            'saddlepoint selftest --case "gradient killer" --case "lucky noise"',
            "saddlepoint selftest --evaluator autoattack --evaluator foolbox --out selftest.json",
            "saddlepoint selftest --list",
            note="Budget and seed are those of our own audits. Any evaluator can be tested in "
            "Python: saddlepoint.selftest(evaluator) with a function (model, x, y, radius) -> "
            "accuracy.",
        ),
    )(selftest)


def selftest(
    ctx: typer.Context,
    case: Annotated[
        list[str] | None,
        typer.Option(
            "--case",
            help="Case to run. Can be given several times.",
            metavar="NAME",
            show_default="all",
        ),
    ] = None,
    evaluator: Annotated[
        list[str] | None,
        typer.Option(
            help="Evaluator to test: ours, autoattack, autoattack-rand, torchattacks, foolbox or "
            "art. Can be given several times.",
            metavar="NAME",
            show_default="ours",
        ),
    ] = None,
    listed: Annotated[
        bool, typer.Option("--list", help="List the cases and run none of them.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="File for the record. Results of other evaluators in it are kept.",
            metavar="FILE.json",
        ),
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option(help="File for the record as a Markdown page.", metavar="FILE.md"),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Evaluate defenses with known robust accuracy, and compare the results with it.

    The test shows whether an evaluator finds the true robust accuracy and, if it does not,
    whether it warns.
    """
    from saddlepoint.selftests import FAMILIES
    from saddlepoint.selftests.page import record, text, write

    if listed:
        rows = [[one.name, family, one.why] for family, cases in FAMILIES.items() for one in cases]
        output().print(table(("case", "mechanism", "reason"), rows))
        return
    names = evaluator or ["ours"]
    budget = ctx.obj["budget"]
    seed = ctx.obj["seed"]
    results = _run(case or [], names, budget, seed, quiet=json)
    kept = record(results, _command(names, budget, seed))
    kept = kept if out is None else write(kept, out)
    if page is not None:
        _write_page(page, text(kept))
    if json:
        dump(kept)
    else:
        for result in results:
            say(result.summary(), style="bold")
    if not all(result.passed for result in results):
        raise typer.Exit(_FAILED)


def _run(
    cases: Sequence[str], evaluator_names: Sequence[str], budget: Budget, seed: int, *, quiet: bool
) -> list[SelfTest]:
    from saddlepoint.selftests.peers import evaluators
    from saddlepoint.selftests.score import chosen
    from saddlepoint.selftests.score import selftest as test

    chosen(cases)  # raises an error for an unknown case
    progress = None if quiet else _print_line
    return [
        test(one, cases, progress=progress) for one in evaluators(evaluator_names, budget, seed)
    ]


def _write_page(page: Path, text: str) -> None:
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(text, encoding="utf-8")


def _print_line(line: Line) -> None:
    reported = "failed" if line.report is None else percent(line.report.robust_accuracy)
    outcome = f"{line.outcome}, without a warning" if line.deceived else line.outcome
    error = f" ({line.error})" if line.error else ""
    note(f"{line.case}: true {line.truth} %, reported {reported}: {outcome}{error}")


def _command(names: Sequence[str], budget: str, seed: int) -> str:
    """The command for the record.

    It names no cases: each case is independent of the others, so the record of some cases is a
    part of the record of all.
    """
    spent = f" --budget {budget}" if budget != "standard" else ""
    seeded = f" --seed {seed}" if seed else ""
    chosen = "".join(f" --evaluator {name}" for name in names)
    return f"saddlepoint selftest{chosen}{spent}{seeded}"
