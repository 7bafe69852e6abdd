"""`saddlepoint reproduce`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from saddlepoint.cli.arguments import JsonOption, RootOption
from saddlepoint.cli.console import dump, examples, note, output, say, table

if TYPE_CHECKING:
    from saddlepoint.papers import Experiment

Scale = Literal["tiny", "small", "real", "paper"]
_ModelsOption = Annotated[
    Path | None,
    typer.Option(
        help="Folder with third-party networks and a modules.py that loads them; for the scale "
        "real.",
        metavar="FOLDER",
    ),
]


def add(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(
        "reproduce",
        epilog=examples(
            "saddlepoint reproduce",
            "saddlepoint reproduce multi-exit/table-1",
            "saddlepoint reproduce multi-exit --scale small --out runs/multi-exit",
            "saddlepoint reproduce multi-exit/seven-exits --scale real --models ../models",
            note="Scales: tiny takes seconds on the embedded digits and only shows that the "
            "experiment works; small trains small networks on CIFAR-10 and MNIST in about an "
            "hour; real evaluates networks that others trained, from the folder --models; paper "
            "is the setting of the authors and needs a large GPU.",
        ),
    )(reproduce)


def reproduce(
    name: Annotated[
        str | None,
        typer.Argument(
            help="An experiment, or a paper for all of its experiments. Without a name, all "
            "experiments are listed.",
            metavar="[NAME]",
        ),
    ] = None,
    scale: Annotated[
        Scale, typer.Option(help="Size of the experiment.", case_sensitive=False)
    ] = "tiny",
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for networks, attacks and results.",
            metavar="FOLDER",
            show_default="runs/reproduce-SCALE",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of all random numbers.")] = 0,
    models: _ModelsOption = None,
    data: RootOption = None,
    json: JsonOption = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Do not print progress.")] = False,
) -> None:
    """Reproduce a table or figure of a paper.

    A reproduction that was interrupted continues when the same command is given again.
    """
    from saddlepoint.papers import EXPERIMENTS, select_experiments

    if name is None or name == "list":
        _list(list(EXPERIMENTS.values()), json)
        return
    experiments = select_experiments(name, EXPERIMENTS)
    from saddlepoint.papers.markdown import READING, result_markdown
    from saddlepoint.papers.registry import Request, no_progress
    from saddlepoint.papers.write import reproduce as make

    folder = out or Path("runs") / f"reproduce-{scale}"
    records = []
    for experiment in experiments:
        progress = no_progress if quiet or json else note
        request = Request(folder, scale, seed, progress, models, data)
        result, record = make(experiment, request)
        records.append(result.record())
        if not json:
            say(result_markdown(result))
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
    rows = [[one.name, one.title, one.reports] for one in experiments]
    output().print(table(("name", "content", "result in the paper"), rows))
    say("Run one with: saddlepoint reproduce NAME --scale tiny")
