"""`saddlepoint reproduce`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from saddlepoint.cli.console import dump, examples, output, say, table, tell

if TYPE_CHECKING:
    from saddlepoint.papers import Experiment


class Scale(StrEnum):
    tiny = "tiny"
    small = "small"
    paper = "paper"


def add(app: typer.Typer) -> None:
    app.command(
        "reproduce",
        epilog=examples(
            "saddlepoint reproduce",
            "saddlepoint reproduce multi-exit/table-1",
            "saddlepoint reproduce multi-exit --scale small --out runs/multi-exit",
            note="Scales: tiny takes seconds on the embedded digits and shows that it works; small trains small networks on "
            "CIFAR-10 and MNIST in about an hour; paper is the authors' setting, for a large GPU.",
        ),
    )(reproduce)


def reproduce(
    name: Annotated[
        str | None,
        typer.Argument(
            help="An experiment, or a paper for all of its experiments; without it, all are listed.",
            metavar="[NAME]",
        ),
    ] = None,
    scale: Annotated[Scale, typer.Option(help="How large.", case_sensitive=False)] = Scale.tiny,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Where networks, episodes and results are kept.",
            metavar="FOLDER",
            show_default="runs/reproduce-SCALE",
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option(help="Weights, images' coins and strategies follow from it.")
    ] = 0,
    json: Annotated[
        bool, typer.Option("--json", help="Print a list of records as JSON, and nothing else.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Do not say how far it is.")] = False,
) -> None:
    """Make a table or figure of a paper again. An interrupted reproduction goes on where it was."""
    from saddlepoint.papers import EXPERIMENTS, chosen

    if name is None or name == "list":
        _list(list(EXPERIMENTS.values()), json)
        return
    found = chosen(name, EXPERIMENTS)
    from saddlepoint.papers.markdown import READING, of_result
    from saddlepoint.papers.registry import Request, silent
    from saddlepoint.papers.write import reproduce as make

    folder = out or Path("runs") / f"reproduce-{scale.value}"
    records = []
    for experiment in found:
        result, record = make(
            experiment, Request(folder, scale.value, seed, silent if quiet or json else tell)
        )
        records.append(result.record())
        if not json:
            say(of_result(result))
            say(f"Record, table and charts: {record}, {record.with_suffix('.md')}\n")
    if json:
        dump(records)
    else:
        say(READING)


def _list(experiments: list[Experiment], json: bool) -> None:
    if json:
        dump(
            [{"name": one.name, "title": one.title, "reports": one.reports} for one in experiments]
        )
        return
    output().print(
        table(
            ("name", "what", "the paper reports"),
            [[one.name, one.title, one.reports] for one in experiments],
        )
    )
    say("Run one with: saddlepoint reproduce NAME --scale tiny")
