"""Printing: results go to standard output, everything else to standard error.

Colors are used on a terminal only.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING

from saddlepoint import phrases
from saddlepoint.phrases import agree, at_least, at_most, count, printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from saddlepoint.audits.verdict import Comparisons

STYLES = {"serious": "red", "warning": "yellow", "note": ""}  # by the level of a symptom
STATES = {  # styles by the state of a checklist item
    "pass": "green",
    "fail": "red",
    "not run": "yellow",
    "not applicable": "",
}
FACTORY = (  # for every help page of a command that takes a target
    "net.py contains a function without arguments that returns the model in eval mode. The model "
    "takes pixels in [0, 1] and returns logits; normalization must be inside the model."
)
_WIDTH = 240  # columns of the output if it is not a terminal


def examples(*commands: str, note: str = "") -> str:
    """The end of a help page.

    Args:
        commands: Commands that the reader can try.
        note: Text below the commands.
    """
    return "\n".join(
        [
            "[bold]Examples[/bold]",
            *(f"  $ {command}" for command in commands),
            *(["", note] if note else []),
        ]
    )


@contextmanager
def aside() -> Iterator[None]:
    """Redirect standard output to standard error: prints of a target must not mix with results.

    The file descriptor is redirected too, since code may write to it directly.
    """
    with redirect_stdout(sys.stderr), _descriptor_aside():
        yield


@contextmanager
def _descriptor_aside() -> Iterator[None]:
    try:
        kept = os.dup(1)
    except OSError:  # standard output is closed
        yield
        return
    try:
        os.dup2(2, 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def output() -> Console:
    """A console for standard output. In files and pipes, lines are wide enough for any table."""
    from rich.console import Console

    return Console(highlight=False, width=None if sys.stdout.isatty() else _WIDTH)


def errors() -> Console:
    """A console for standard error."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)


def warn(message: str) -> None:
    """Print an error on standard error, unwrapped, so that it can be searched for."""
    errors().print(printable(message), style="red", markup=False, soft_wrap=True)


def note(message: str, style: str = "") -> None:
    """Print a line on standard error, beside a result that a program may read."""
    errors().print(printable(message), style=style or None, markup=False, soft_wrap=True)


def say(message: str, style: str = "") -> None:
    """Print a line on standard output. Brackets in it are not interpreted as markup."""
    output().print(printable(message), style=style or None, markup=False, soft_wrap=True)


def dump(value: object) -> None:
    """Print JSON on standard output."""
    import json

    import typer

    typer.echo(json.dumps(value, indent=1))


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A table with text aligned left and numbers aligned right."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=box.SIMPLE, pad_edge=False)
    for k, title in enumerate(head):
        numeric = bool(rows) and all(_is_numeric(row[k]) for row in rows)
        drawn.add_column(
            Text(title), justify="right" if numeric else "left", vertical="bottom", no_wrap=k == 0
        )
    for row in rows:
        drawn.add_row(*(Text(printable(cell)) for cell in row))
    return drawn


def _is_numeric(cell: str) -> bool:
    return cell.lstrip("≤≥<> ")[:1].isdigit() or cell in ("", "–")


def comparison_lines(compared: Comparisons) -> list[str]:
    """The numbers that the robust accuracy is compared with, one line each."""
    lines = []
    if compared.claim is not None:
        lines.append(f"claimed robust accuracy: {percent(compared.claim)}.")
    if (static := compared.static) is not None:
        lines.append(
            f"static network inside the defense: {percent(static.clean_accuracy)} clean, "
            f"{at_most(static.robust_accuracy)} robust; {count(static.only_defense, 'image')} "
            f"{agree(static.only_defense, 'is', 'are')} robust only with the defense, "
            f"{static.only_static} only without it (McNemar, p = {static.p:.2g})."
        )
    if (proven := compared.proven) is not None:
        lines.append(f"certified robust accuracy: {at_least(proven.accuracy)}, by {proven.method}.")
    return lines


def percent(share: float) -> str:
    """`62.0 %` for 0.62."""
    return phrases.percent_cell(share)
