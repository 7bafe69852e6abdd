"""`saddlepoint zoo`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from saddlepoint.cli.arguments import JsonOption
from saddlepoint.cli.console import dump, examples, output, percent, say, table

if TYPE_CHECKING:
    from rich.table import Table

    from saddlepoint.zoo import Entry


def add(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(
        "zoo",
        epilog=examples(
            "saddlepoint zoo",
            "saddlepoint zoo --json",
            "saddlepoint audit zoo:digits-pgd --eps 0.15",
        ),
    )(zoo)


def zoo(json: JsonOption = False) -> None:
    """List the trained models and the defenses of the package, with their measured accuracies.

    Adaptive defenses are listed with the categories of Croce et al. 2022.
    """
    from saddlepoint.zoo import entry, names
    from saddlepoint.zoo.adaptive.taxonomy import BLOCKS, PRINCIPLES

    entries = [entry(name) for name in names()]
    if json:
        dump([_record(one) for one in entries])
        return
    output().print(model_table([one for one in entries if not one.defense]))
    output().print(defense_table([one for one in entries if one.defense]))
    legend = [*PRINCIPLES.items(), *BLOCKS.items()]
    say("; ".join(f"{short}: {words}" for short, words in legend) + " (Croce et al. 2022, Sec. 2).")
    say("Audit one with: saddlepoint audit zoo:NAME --eps RADIUS")


def _record(entry: Entry) -> dict[str, object]:
    from saddlepoint.zoo.adaptive.taxonomy import surveyed

    row = surveyed(entry.defense)
    return {**asdict(entry), "taxonomy": asdict(row) if row else None}


def model_table(entries: list[Entry]) -> Table:
    """A table of models with their accuracies.

    The last column is the worst case over the attacks that were used to measure the model.
    """
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
    head = (
        "name",
        "data",
        "parameters",
        "training radius",
        "measured at",
        "clean accuracy",
        "worst case",
    )
    return table(head, rows)


def defense_table(entries: list[Entry]) -> Table:
    """A table of defenses with their category, their network and their accuracies."""
    from saddlepoint.zoo.adaptive.taxonomy import surveyed

    rows = []
    for one in entries:
        row = surveyed(one.defense)
        category = (row.principle, ", ".join(row.blocks)) if row else ("–", "–")
        rows.append(
            [
                one.name,
                one.defense,
                *category,
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
        "parameters",
        "measured at",
        "clean accuracy",
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
