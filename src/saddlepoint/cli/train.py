"""`saddlepoint train`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from saddlepoint.cli.console import dump, errors, examples, output, say

if TYPE_CHECKING:
    from saddlepoint.training import Recipe
    from saddlepoint.zoo import Entry


def add(app: typer.Typer) -> None:
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
        str, typer.Argument(help="A recipe of the package, such as digits-pgd.", metavar="RECIPE")
    ],
    seed: Annotated[
        int, typer.Option(help="Initial weights, order and adversaries follow from it.")
    ] = 0,
    out: Annotated[
        Path | None,
        typer.Option(help="Where to write.", metavar="FOLDER", show_default="runs/train-RECIPE"),
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start anew where an interrupted run could go on.")
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print the record as JSON, and nothing else.")
    ] = False,
) -> None:
    """Train a model of the zoo again, measure it, and write weights and record. An interrupted run goes on where it was.

    What a defense learns takes a minute, and begins anew.
    """
    from saddlepoint.cli.zoo import scores as scored
    from saddlepoint.zoo import recipe as find
    from saddlepoint.zoo.embedded import KITS, make

    folder = out or Path("runs") / f"train-{recipe}"
    if recipe in KITS:
        done = make(KITS[recipe], folder, seed=seed)
    else:
        done = _rebuilt(
            find(recipe, beside=tuple(KITS)), folder, seed, resume=not fresh, quiet=json
        )
    if json:
        files = {"weights": f"{recipe}.safetensors"} if done.sha256 else {}
        dump(
            {
                **asdict(done),
                **{
                    kind: str(folder / file)
                    for kind, file in {**files, "record": f"{recipe}.json"}.items()
                },
            }
        )
        return
    output().print(scored([done]))
    written = (
        f"{folder / recipe}.safetensors, {folder / recipe}.json"
        if done.sha256
        else f"{folder / recipe}.json"
    )
    say(f"{'Weights and record' if done.sha256 else 'Record'}: {written}")
    say(f"Audit it with: saddlepoint audit zoo:{folder / recipe} --eps {done.measured.radius:g}")


def _rebuilt(chosen: Recipe, folder: Path, seed: int, *, resume: bool, quiet: bool) -> Entry:
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from saddlepoint.training import Epoch
    from saddlepoint.zoo import rebuild

    console = errors()
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeRemainingColumn())
    with Progress(
        *columns, console=console, transient=True, disable=quiet or not console.is_terminal
    ) as bar:
        task = bar.add_task(chosen.name, total=chosen.epochs)

        def tell(epoch: Epoch) -> None:
            scores = (
                f"loss {epoch.loss:.3f}, dev {epoch.clean:.3f} clean, {epoch.selected:.3f} attacked"
            )
            scores += f", residual {epoch.residual:.2g}" if epoch.residual is not None else ""
            told = f"epoch {epoch.number} of {chosen.epochs}: {scores}"
            bar.update(task, completed=epoch.number, description=told)
            if not (quiet or console.is_terminal):
                console.print(told, markup=False, soft_wrap=True)

        return rebuild(chosen, folder, seed=seed, out=folder, resume=resume, progress=tell)
