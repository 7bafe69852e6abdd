"""What is printed, and where: results on standard output, everything else on standard error. Colors only on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from saddlepoint.audits.verdict import Comparisons

STYLES = {"serious": "red", "warning": "yellow", "note": ""}  # of symptoms
STATES = {
    "pass": "green",
    "fail": "red",
    "not run": "yellow",
    "does not apply": "",
}  # of checklist items
FACTORY = (  # of every page that takes a target
    "net.py holds a function without arguments that returns the model in eval mode. Its inputs are pixels from 0 to 1, its outputs "
    "logits: put normalization inside."
)
_WIDE = 240


def examples(*commands: str, note: str = "") -> str:
    """The end of a help page: commands to try, and what must be known to try them."""
    return "\n".join(
        [
            "[bold]Examples[/bold]",
            *(f"  $ {command}" for command in commands),
            *(["", note] if note else []),
        ]
    )


@contextmanager
def aside() -> Iterator[None]:
    """While a target works: standard output is for results, so that whatever it prints goes to standard error."""
    with redirect_stdout(sys.stderr):
        yield


def output() -> Console:
    """Standard output; a file or pipe has no width, and nothing in it need be cut short."""
    from rich.console import Console

    return Console(highlight=False, width=None if sys.stdout.isatty() else _WIDE)


def errors() -> Console:
    from rich.console import Console

    return Console(stderr=True, highlight=False)


def warn(message: str) -> None:
    """A message on standard error, never wrapped: it may be searched for."""
    errors().print(message, style="red", markup=False, soft_wrap=True)


def tell(message: str) -> None:
    """A line on standard error beside a result that somebody reads by program."""
    errors().print(message, markup=False, soft_wrap=True)


def say(message: str, style: str = "") -> None:
    """A line on standard output; names in it are never read as markup."""
    output().print(message, style=style or None, markup=False, soft_wrap=True)


def dump(value: object) -> None:
    """JSON on standard output, for programs."""
    import json

    import typer

    typer.echo(json.dumps(value, indent=1))


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Words left, numbers right."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=box.SIMPLE, pad_edge=False)
    for k, title in enumerate(head):
        numeric = bool(rows) and all(row[k][:1].isdigit() or row[k] in ("", "–") for row in rows)
        drawn.add_column(
            Text(title), justify="right" if numeric else "left", vertical="bottom", no_wrap=k == 0
        )
    for row in rows:
        drawn.add_row(*(Text(cell) for cell in row))
    return drawn


def beside(compared: Comparisons) -> list[str]:
    """What the number is held against, a line each."""
    lines = []
    if compared.claim is not None:
        lines.append(f"claimed: {percent(compared.claim)}.")
    if (static := compared.static) is not None:
        lines.append(
            f"static net inside: {percent(static.clean_accuracy)} clean, at most {percent(static.robust_accuracy)} robust; "
            f"{static.only_defense} images stand only with the defense, {static.only_static} only without it "
            f"(McNemar, p = {static.p:.2g})."
        )
    if (proven := compared.proven) is not None:
        lines.append(f"proven: at least {percent(proven.accuracy)}, by {proven.method}.")
    return lines


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"
