"""`saddlepoint audit`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from saddlepoint.cli.radius import USUAL, Norm, Radius, radius
from saddlepoint.cli.request import Effort, Request
from saddlepoint.cli.text import errors, examples, output, percent, say, table

if TYPE_CHECKING:
    from saddlepoint.auditing import Audit


def add(app: typer.Typer) -> None:
    app.command(
        "audit",
        epilog=examples(
            "saddlepoint audit zoo:digits-pgd --eps 0.15",
            "saddlepoint audit net.py:make --data cifar10 --n 1000 --budget thorough",
            "saddlepoint audit my.package.models:robust --data images.npz --norm l2",
            "saddlepoint audit net.py:make --json | jq .robust_accuracy",
            note="net.py holds a function without arguments that returns the model in eval mode. Its input are pixels from 0 to 1, its "
            "output logits: put normalisation inside.",
        ),
    )(audit)


def audit(
    target: Annotated[
        str, typer.Argument(help="What to attack: file.py:factory, package.module:factory or zoo:NAME.", metavar="TARGET")
    ],
    data: Annotated[str, typer.Option(help="A name (`saddlepoint data list`), a .npz file or file.py:function.")] = "digits",
    n: Annotated[int | None, typer.Option("--n", min=1, help="How many images.", show_default="500, or all if fewer")] = None,
    norm: Annotated[Norm, typer.Option(help="How perturbations are measured.", case_sensitive=False)] = Norm.linf,
    eps: Annotated[
        Radius | None,
        typer.Option(parser=radius, metavar="RADIUS", help="As 8/255 or 0.031.", show_default="linf 8/255, l2 0.5, l1 12"),
    ] = None,
    budget: Annotated[Effort, typer.Option(help="How much the attacks may cost.", case_sensitive=False)] = Effort.standard,
    seed: Annotated[int, typer.Option(help="Every random number follows from it.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Where to write.", metavar="FOLDER", show_default="runs/TARGET-NORM-RADIUS")
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Images attacked together.")] = 128,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps.")] = "cpu",
    root: Annotated[Path | None, typer.Option(help="The folder that holds the data.", metavar="FOLDER")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the record as JSON, and nothing else.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress, no table: the verdict alone.")] = False,
) -> None:
    """Attack a model and say how robust it is: an upper bound, with an interval and what speaks against it."""
    from saddlepoint.cli.progress import Watching

    request = Request(target, data, n, norm, eps or USUAL[norm], budget, seed, batch_size, device, root, out)
    with Watching(errors(), shown=not (json or quiet)) as watch:
        done = request.run(watch)
    if json:
        import json as notation

        typer.echo(notation.dumps(done.record(), indent=1))
        return
    if not quiet:
        show(done)
    say(verdict(done), style="bold")
    say(f"Report: {request.folder / 'report.html'}")


def show(audit: Audit) -> None:
    """What speaks against the number, then the numbers."""
    for symptom in audit.symptoms:
        say(
            f"{symptom.level}: {symptom.name}. {symptom.message}",
            style={"serious": "red", "warning": "yellow"}.get(symptom.level, ""),
        )
    rows = [["clean", percent(audit.clean_accuracy), percent(audit.clean_accuracy), *["–"] * 4]]
    for row in audit.rows:
        passes = f"{row.forward:.1f} / {row.backward:.1f}"
        taken, seconds = f"{100 * row.gain:.1f}", f"{row.seconds:.1f}"
        rows.append([row.name, percent(row.robust_accuracy), percent(row.running), taken, str(row.attacked), passes, seconds])
    head = ("attack", "accuracy", "worst case", "taken", "attacked", "forward / backward", "seconds")
    output().print(table(head, rows))


def verdict(audit: Audit) -> str:
    return f"{audit.target}, {audit.threat.partition(',')[0]}: {audit.summary()}"
