"""The command line.

Commands import torch when they run, not when they are loaded, so that `--help` is fast.
"""

from __future__ import annotations

import inspect
from typing import Annotated

import typer

from saddlepoint.cli import (
    audit,
    bench,
    curve,
    data,
    demo,
    doctor,
    game,
    probe,
    report,
    reproduce,
    rescore,
    runs,
    selftest,
    train,
    view,
    zoo,
)
from saddlepoint.cli.console import examples
from saddlepoint.cli.errors import CommandLine

app = typer.Typer(
    name="saddlepoint",
    cls=CommandLine,
    no_args_is_help=True,
    # A bug shows the traceback of Python itself, which can be pasted into a bug report.
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    epilog=examples(
        "saddlepoint demo",
        "saddlepoint audit net.py:make --data digits --eps 8/255",
        "saddlepoint audit zoo:digits-pgd --eps 0.15 --json > audit.json",
        "saddlepoint game zoo:digits-exits --eps 0.15",
        "saddlepoint data pull cifar10",
    ),
)


def _print_version(requested: bool) -> None:
    if requested:
        version()
        raise typer.Exit


@app.callback()
def _root(
    traceback: Annotated[
        bool, typer.Option("--traceback", help="Show the Python traceback of an error.")
    ] = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Measure the adversarial robustness of dynamic models.

    A dynamic model iterates, exits early, adapts or optimizes at test time. saddlepoint attacks it
    with attacks that are adapted to it, and reports how far the result can be trusted.
    """


@app.command("version", epilog=examples("saddlepoint version"))
def version() -> None:
    """Print the version."""
    from importlib.metadata import version as installed

    typer.echo(f"saddlepoint {installed('saddlepoint')}")


# To add a command, write a module with a function `add`.
for command in (
    audit,
    probe,
    game,
    curve,
    bench,
    runs,
    report,
    view,
    demo,
    zoo,
    train,
    reproduce,
    rescore,
    selftest,
    data,
    doctor,
):
    command.add(app)


def _join_lines(group: typer.Typer) -> None:
    """Wrap help texts by the width of the terminal instead of by the lines of docstrings."""
    for command in group.registered_commands:
        command.help = command.help or _paragraphs(command.callback)
    for nested in group.registered_groups:
        if nested.typer_instance is not None:
            _join_lines(nested.typer_instance)
    if group.registered_callback is not None:
        group.registered_callback.help = _paragraphs(group.registered_callback.callback)


def _paragraphs(function: object) -> str:
    """The docstring of a function, with each paragraph on one line."""
    parts = (inspect.getdoc(function) or "").split("\n\n")
    return "\n\n".join(" ".join(part.split()) for part in parts)


_join_lines(app)


def main() -> None:
    """The entry point of the `saddlepoint` script."""
    app(prog_name="saddlepoint")
