"""`saddlepoint curve`."""

from __future__ import annotations

from typing import Annotated

import typer

from saddlepoint.cli.arguments import JsonOption, TargetArgument
from saddlepoint.cli.console import FACTORY, aside, dump, examples, output, percent, say, table
from saddlepoint.cli.execution import check_device
from saddlepoint.cli.options import audit_spec, some_audit_options, with_options
from saddlepoint.phrases import mean_count

_KEYS = ("data.name", "data.split", "data.n", "data.root", "threat.norm")


def add(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(
        "curve",
        cls=with_options(some_audit_options(*_KEYS, "seed", "batch_size", "device")),
        epilog=examples(
            "saddlepoint curve zoo:digits-pgd --radii 0.05,0.1,0.15,0.2",
            "saddlepoint curve net.py:make --data cifar10 --radii 1/255,2/255,4/255,8/255",
            note=f"{FACTORY} One minimum-norm attack gives upper bounds of robust accuracy at all "
            "radii. For a verdict, audit one radius: saddlepoint audit.",
        ),
    )(curve)


def curve(
    ctx: typer.Context,
    target: TargetArgument,
    radii: Annotated[
        str,
        typer.Option(help="Radii, separated by commas: 1/255,2/255,4/255.", metavar="RADII"),
    ],
    steps: Annotated[int, typer.Option(min=1, help="Steps of the minimum-norm attack.")] = 100,
    json: JsonOption = False,
) -> None:
    """Bound the robust accuracy at several radii in one run."""
    from saddlepoint import api
    from saddlepoint.attacks.spaces import L1, L2, Linf
    from saddlepoint.data import load_data
    from saddlepoint.runs.targets import resolve

    spec = audit_spec(target, ctx.obj)
    check_device(spec.device)
    data = load_data(spec.data.name, split=spec.data.split, n=spec.data.n, root=spec.data.root)
    with aside():
        found, _ = resolve(target)
        result = api.curve(
            found,
            data.x.to(spec.device),
            data.y.to(spec.device),
            radii=radii.split(","),
            norm={"linf": Linf, "l2": L2, "l1": L1}[spec.threat.norm],
            steps=steps,
            seed=spec.seed,
            batch_size=spec.batch_size,
        )
    if json:
        dump(result.record())
        return
    rows = [["clean", percent(result.clean_accuracy), ""]]
    for space, accuracy, interval in zip(
        result.spaces, result.accuracy, result.intervals, strict=True
    ):
        rows.append([str(space), f"≤ {percent(accuracy)}", str(interval)])
    output().print(table(("threat", "robust accuracy", "95 % interval"), rows))
    passes = mean_count(result.passes, "pass")
    say(f"{target}: {passes} per image for all radii.", style="bold")
