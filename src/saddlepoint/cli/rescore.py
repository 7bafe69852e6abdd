"""`saddlepoint rescore`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from saddlepoint.cli.arguments import JsonOption
from saddlepoint.cli.console import aside, dump, examples, say
from saddlepoint.cli.execution import check_device
from saddlepoint.cli.options import audit_spec, some_audit_options, with_options

_KEYS = ("data.name", "data.split", "data.n", "data.root", "threat.norm", "threat.radius")


def add(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(
        "rescore",
        cls=with_options(
            some_audit_options(*_KEYS, "threat.randomness", "seed", "batch_size", "device")
        ),
        epilog=examples(
            "saddlepoint rescore points.npz --target net.py:make --data cifar10 --n 1000",
            "saddlepoint rescore aa_standard.pth --target zoo:digits-pgd --eps 0.15",
            "saddlepoint rescore runs/mine/points.safetensors --target net.py:other --eps 8/255",
            note="The file has one point per image, in the order of the data: an array in .npz or "
            ".npy, a tensor in .pt or .pth, such as AutoAttack saves, or points.safetensors of a "
            "run. Points outside of the perturbation set do not count; they are reported.",
        ),
    )(rescore)


def rescore(
    ctx: typer.Context,
    points: Annotated[Path, typer.Argument(help="The file with the points.", metavar="POINTS")],
    target: Annotated[
        str,
        typer.Option(
            help="The model or defense: file.py:factory, package.module:factory, zoo:NAME or "
            "FILE.onnx.",
            metavar="TARGET",
        ),
    ],
    array: Annotated[
        str | None,
        typer.Option(
            help="Name of the array in the file.",
            metavar="NAME",
            show_default="the only one, or one with a usual name",
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Evaluate points that another program or another run found.

    The referee checks every point: is it in the perturbation set, and is it misclassified?
    """
    from saddlepoint.data.points import read_points
    from saddlepoint.runs.rescore import rescore as evaluate

    spec = audit_spec(target, ctx.obj)
    check_device(spec.device)
    with aside():
        result = evaluate(spec, read_points(points, array))
    if json:
        dump(result.record())
        return
    say(f"{target}, {points.name}: {result.summary()}", style="bold")
