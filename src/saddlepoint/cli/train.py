"""`saddlepoint train`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from saddlepoint.cli.arguments import JsonOption
from saddlepoint.cli.console import dump, errors, examples, output, percent, say, table
from saddlepoint.phrases import count

if TYPE_CHECKING:
    from rich.table import Table

    from saddlepoint.training import Epoch, Recipe
    from saddlepoint.zoo import Entry


def add(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(
        "train",
        epilog=examples(
            "saddlepoint train digits-pgd",
            "saddlepoint train digits-trades --seed 1 --out runs/trades-1",
            "saddlepoint train digits-aid",
            "saddlepoint audit zoo:runs/train-digits-pgd/digits-pgd --eps 0.15",
        ),
    )(train)


def train(
    recipe: Annotated[
        str,
        typer.Argument(
            help="Name of a model of `saddlepoint zoo`, such as digits-pgd.", metavar="RECIPE"
        ),
    ],
    seed: Annotated[
        int,
        typer.Option(help="Seed of the initial weights, the order of the data and the attacks."),
    ] = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the weights and the record.",
            metavar="FOLDER",
            show_default="runs/train-RECIPE",
        ),
    ] = None,
    fresh: Annotated[
        bool,
        typer.Option(
            "--fresh", help="Start again, even if an interrupted training could continue."
        ),
    ] = False,
    json: JsonOption = False,
) -> None:
    """Train a model of the zoo again, check its accuracy, and write its weights and its record.

    A training that was interrupted continues. The trained parts of a defense take about a minute
    and start again.
    """
    from saddlepoint.zoo import recipe as find
    from saddlepoint.zoo.embedded import KITS, make

    folder = out or Path("runs") / f"train-{recipe}"
    if recipe in KITS:
        entry = make(KITS[recipe], folder, seed=seed)
    else:
        known = find(recipe, beside=tuple(KITS))
        entry = _train_network(known, folder, seed, resume=not fresh, quiet=json)
    files = {"weights": folder / f"{recipe}.safetensors"} if entry.sha256 else {}
    files["record"] = folder / f"{recipe}.json"
    if json:
        dump({**asdict(entry), **{kind: str(file) for kind, file in files.items()}})
        return
    output().print(_check_table(entry))
    kinds = " and ".join(files).capitalize()
    say(f"{kinds}: {', '.join(str(file) for file in files.values())}")
    say(f"Audit it with: saddlepoint audit zoo:{folder / recipe} --eps {entry.check.radius:g}")


def _check_table(entry: Entry) -> Table:
    """The accuracies of the check after training, by adversary."""
    check = entry.check
    rows = [[name, percent(accuracy)] for name, accuracy in check.accuracy.items()]
    title = f"accuracy on {count(check.n, 'test image')}, L{check.p} {check.radius:g}"
    return table(("check after training", title), rows)


def _train_network(recipe: Recipe, folder: Path, seed: int, *, resume: bool, quiet: bool) -> Entry:
    """Train with a progress bar on a terminal, or one line per epoch in a log."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from saddlepoint.zoo import rebuild

    console = errors()
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeRemainingColumn())
    with Progress(
        *columns, console=console, transient=True, disable=quiet or not console.is_terminal
    ) as bar:
        task = bar.add_task(recipe.name, total=recipe.epochs)

        def show(epoch: Epoch) -> None:
            line = _epoch_line(epoch, recipe.epochs)
            bar.update(task, completed=epoch.number, description=line)
            if not (quiet or console.is_terminal):
                console.print(line, markup=False, soft_wrap=True)

        return rebuild(recipe, folder, seed=seed, out=folder, resume=resume, progress=show)


def _epoch_line(epoch: Epoch, epochs: int) -> str:
    residual = f", residual {epoch.residual:.2g}" if epoch.residual is not None else ""
    return (
        f"epoch {epoch.number} of {epochs}: loss {epoch.loss:.3f}, validation accuracy "
        f"{epoch.clean:.3f} clean, {epoch.selected:.3f} attacked{residual}"
    )
