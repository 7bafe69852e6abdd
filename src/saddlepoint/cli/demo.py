"""`saddlepoint demo`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from saddlepoint.cli.arguments import JsonOption
from saddlepoint.cli.console import dump, examples, note, output, say, table
from saddlepoint.cli.folders import check_writable
from saddlepoint.cli.options import some_audit_options, with_options

if TYPE_CHECKING:
    from saddlepoint.cli.demo_run import Effort


def add(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(
        "demo",
        cls=with_options(some_audit_options("budget")),
        epilog=examples("saddlepoint demo", "saddlepoint demo --out /tmp/demo --n 60"),
    )(demo)


def demo(
    ctx: typer.Context,
    out: Annotated[
        Path, typer.Option(help="Folder for the results and the report.", metavar="FOLDER")
    ] = Path("runs/demo"),
    n: Annotated[
        int, typer.Option("--n", min=4, max=500, help="Largest number of images per model.")
    ] = 30,
    model: Annotated[
        list[str] | None,
        typer.Option(help="Only this model; may be repeated.", metavar="NAME"),
    ] = None,
    full_autoattack: Annotated[
        bool,
        typer.Option(
            "--full-autoattack",
            help="Run AutoAttack in its full length: about twice the processor time.",
        ),
    ] = False,
    json: JsonOption = False,
) -> None:
    """Evaluate four defenses and a robust network in three ways and compare the numbers.

    A purifier, a randomized defense, an early-exit network and a network that adapts at test time
    are evaluated as their authors would, by a shortened AutoAttack, and by an audit. An
    adversarially trained network is evaluated in the same ways. It takes about two minutes of
    processor time, divided between two processes.
    """
    from saddlepoint.cli.demo_page import cells, head, write_page
    from saddlepoint.cli.demo_run import RADIUS, Effort, run_all

    check_writable(out)
    budget = ctx.obj["budget"]
    effort = Effort.FULL if full_autoattack else Effort.SHORT
    if budget == "quick":
        effort = Effort.TINY
    start = time.monotonic()
    results = run_all(
        out,
        n,
        budget,
        effort,
        model or (),
        done=None if json else lambda r: note(f"{r.title}: {r.seconds:.0f} s of computing"),
    )
    page = write_page(results, out / "index.html", effort)
    seconds = time.monotonic() - start
    if json:
        dump(
            {
                "n": n,
                "budget": budget,
                "autoattack": str(effort),
                "models": [result.record() for result in results],
            }
        )
        return
    output().print(table(head(effort), [cells(result) for result in results]))
    for result in results:
        say(f"{result.title}. {result.why}")
    say(f"Linf radius {RADIUS:g}, test digits, {seconds:.0f} s. {_sentence(effort)}")
    say(f"Report: {page}")


def _sentence(effort: Effort) -> str:
    """How long the suite of AutoAttack was, and how to run all of it."""
    suite = effort.suite
    more = "" if suite == "AutoAttack" else " --full-autoattack runs all of it."
    return f"{suite[:1].upper()}{suite[1:]}: {effort}.{more}"
