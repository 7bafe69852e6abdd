"""The command line. Commands import torch when they run, not before: `--help` answers at once."""

from __future__ import annotations

from typing import Annotated

import typer

from saddlepoint.cli import (
    audit,
    data,
    demo,
    doctor,
    game,
    probe,
    report,
    reproduce,
    runs,
    selftest,
    train,
    view,
    zoo,
)
from saddlepoint.cli.console import examples
from saddlepoint.cli.errors import Shielded

app = typer.Typer(
    name="saddlepoint",
    cls=Shielded,
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # a bug shows Python's own traceback, which can be pasted into a report
    rich_markup_mode="rich",
    epilog=examples(
        "saddlepoint demo",
        "saddlepoint audit net.py:make --data digits --eps 8/255",
        "saddlepoint audit zoo:digits-pgd --eps 0.15 --json > audit.json",
        "saddlepoint game zoo:digits-exits --eps 0.15",
        "saddlepoint data pull cifar10",
    ),
)


def _print_version(wanted: bool) -> None:
    if wanted:
        version()
        raise typer.Exit


@app.callback()
def _root(
    traceback: Annotated[
        bool, typer.Option("--traceback", help="Show where an error came from.")
    ] = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """How robust is a dynamic model, really? Attacks it as an informed attacker would and says what can be concluded."""


@app.command("version")
def version() -> None:
    """Print the version."""
    from importlib.metadata import version as installed

    typer.echo(f"saddlepoint {installed('saddlepoint')}")


# A new command is a module with `add`.
for command in (
    audit,
    probe,
    game,
    runs,
    report,
    view,
    demo,
    zoo,
    train,
    reproduce,
    selftest,
    data,
    doctor,
):
    command.add(app)


def main() -> None:
    """The entry point of the `saddlepoint` script."""
    app(prog_name="saddlepoint")
