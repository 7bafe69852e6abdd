"""`saddlepoint zoo`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from saddlepoint.cli.console import examples, output, percent, say, table

if TYPE_CHECKING:
    from rich.table import Table

    from saddlepoint.zoo import Entry


def add(app: typer.Typer) -> None:
    app.command(
        "zoo",
        epilog=examples(
            "saddlepoint zoo",
            "saddlepoint zoo --json",
            "saddlepoint audit zoo:digits-pgd --eps 0.15",
        ),
    )(zoo)


def zoo(
    json: Annotated[
        bool, typer.Option("--json", help="Print the records as JSON, and nothing else.")
    ] = False,
) -> None:
    """List the trained models and the defenses of the package with what they were measured to score.

    Adaptive defenses also say what they do, as Croce et al. 2022 sort them.
    """
    from saddlepoint.zoo import entry, names
    from saddlepoint.zoo.adaptive.taxonomy import BLOCKS, PRINCIPLES, surveyed

    entries = [entry(name) for name in names()]
    if json:
        import json as notation

        told = [
            {**asdict(one), "taxonomy": asdict(row) if (row := surveyed(one.defense)) else None}
            for one in entries
        ]
        typer.echo(notation.dumps(told, indent=1))
        return
    output().print(scores([one for one in entries if not one.defense]))
    output().print(defenses([one for one in entries if one.defense]))
    legend = [*PRINCIPLES.items(), *BLOCKS.items()]
    say("; ".join(f"{short}: {words}" for short, words in legend) + " (Croce et al. 2022, Sec. 2).")
    say("Audit one with: saddlepoint audit zoo:NAME --eps RADIUS")


def scores(entries: list[Entry]) -> Table:
    """Names beside accuracies; the last column is the worst case over the adversaries that measured it."""
    rows = [
        [
            one.name,
            one.measured.data.partition(",")[0],
            str(one.parameters),
            f"{one.training_radius:g}" if one.training_radius else "–",
            *_measured(one),
        ]
        for one in entries
    ]
    return table(
        ("name", "data", "weights", "trained at", "measured at", "clean", "worst case"), rows
    )


def defenses(entries: list[Entry]) -> Table:
    """Names, what the defense does, the network it stands on, and accuracies."""
    from saddlepoint.zoo.adaptive.taxonomy import surveyed

    rows = []
    for one in entries:
        row = surveyed(one.defense)
        does = (row.principle, ", ".join(row.blocks)) if row else ("–", "–")
        rows.append(
            [
                one.name,
                one.defense,
                *does,
                one.net,
                str(one.parameters),
                *_measured(one),
                str(one.measured.n),
            ]
        )
    head = (
        "name",
        "defense",
        "principle",
        "blocks",
        "network",
        "weights",
        "measured at",
        "clean",
        "worst case",
        "images",
    )
    return table(head, rows)


def _measured(one: Entry) -> tuple[str, str, str]:
    accuracy = one.measured.accuracy
    return (
        f"L{one.measured.p} {one.measured.radius:g}",
        percent(accuracy["clean"]),
        percent(accuracy["worst case"]),
    )
