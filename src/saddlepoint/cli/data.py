"""`saddlepoint data`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from saddlepoint.cli.arguments import JsonOption, RootOption
from saddlepoint.cli.console import dump, examples, output, say, table
from saddlepoint.cli.lazy_group import LazyGroup


def add(app: typer.Typer) -> None:
    """Add the group of commands to the application."""
    group = typer.Typer(
        cls=LazyGroup,
        no_args_is_help=True,
        help="List and download data sets.",
        rich_markup_mode="rich",
        epilog=examples("saddlepoint data list", "saddlepoint data pull cifar10"),
    )
    group.command(
        "list", epilog=examples("saddlepoint data list", "saddlepoint data list --root ~/data")
    )(list_data)
    group.command(
        "pull",
        epilog=examples(
            "saddlepoint data pull mnist",
            "saddlepoint data pull cifar10 --root ~/data --base-url https://mirror.example/cifar",
        ),
    )(pull_data)
    app.add_typer(group, name="data")


def list_data(root: RootOption = None, json: JsonOption = False) -> None:
    """List the data sets that `--data` knows by name, and which of them are installed."""
    from saddlepoint.data import PULLABLE, SOURCES

    found = [(name, _shape(name, root), name in PULLABLE) for name in SOURCES]
    if json:
        dump([{"name": name, "shape": shape, "pullable": pull} for name, shape, pull in found])
        return
    rows = [
        [name, f"yes, images {shape}" if shape else "no", "yes" if pull else "–"]
        for name, shape, pull in found
    ]
    output().print(table(("name", "installed", "can be downloaded"), rows))
    say(
        "--data also takes a .npz file with arrays x and y, a folder with train.npz and test.npz, "
        "or file.py:function."
    )


def _shape(name: str, root: Path | None) -> list[int] | None:
    """The shape of the first image, or None if it cannot be read.

    The image is read because a folder that exists may contain an incomplete download.
    """
    from saddlepoint.data import DataError, load_data

    try:
        return list(load_data(name, n=1, root=root).x.shape[1:])
    except DataError:
        return None


def pull_data(
    name: Annotated[
        str,
        typer.Argument(
            help="mnist, fashion-mnist, cifar10, cifar100, svhn, gtsrb or tiny-imagenet.",
            metavar="NAME",
        ),
    ],
    root: RootOption = None,
    base_url: Annotated[
        str | None,
        typer.Option(help="Address of a mirror that serves the same files.", metavar="URL"),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Download a data set, verify it and unpack it. Files that are already there are kept."""
    from saddlepoint.data import pull

    folder = pull(name, root=root, base_url=base_url, progress=sys.stdout.isatty() and not json)
    if json:
        dump({"name": name, "folder": str(folder)})
        return
    say(f"{name} is in {folder}")
