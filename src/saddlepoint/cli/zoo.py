"""`saddlepoint zoo`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from saddlepoint.cli.text import examples, output, percent, say, table

if TYPE_CHECKING:
    from rich.table import Table

    from saddlepoint.zoo import Entry


def add(app: typer.Typer) -> None:
    app.command("zoo", epilog=examples("saddlepoint zoo", "saddlepoint zoo --json", "saddlepoint audit zoo:digits-pgd --eps 0.15"))(
        zoo
    )


def zoo(json: Annotated[bool, typer.Option("--json", help="Print the records as JSON, and nothing else.")] = False) -> None:
    """List the trained models of the package with what they were measured to score."""
    from saddlepoint.zoo import entry, names

    entries = [entry(name) for name in names()]
    if json:
        import json as notation

        typer.echo(notation.dumps([asdict(one) for one in entries], indent=1))
        return
    output().print(scores(entries))
    say("Audit one with: saddlepoint audit zoo:NAME --eps RADIUS")


def scores(entries: list[Entry]) -> Table:
    """Names beside accuracies; the last column is the worst case over the adversaries that measured it."""
    rows = [
        [
            one.name,
            one.measured.data.partition(",")[0],
            str(one.parameters),
            f"{one.training_radius:g}" if one.training_radius else "–",
            f"L{one.measured.p} {one.measured.radius:g}",
            percent(one.measured.accuracy["clean"]),
            percent(one.measured.accuracy["worst case"]),
        ]
        for one in entries
    ]
    return table(("name", "data", "weights", "trained at", "measured at", "clean", "worst case"), rows)
