"""`saddlepoint data`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from saddlepoint.cli.console import dump, examples, output, say, table
from saddlepoint.cli.lazy_group import Light

_Root = Annotated[
    Path | None,
    typer.Option(
        help="The folder that holds the data.",
        metavar="FOLDER",
        show_default="$SADDLEPOINT_DATA, or the user's cache",
    ),
]


def add(app: typer.Typer) -> None:
    group = typer.Typer(
        cls=Light, no_args_is_help=True, help="List and download data.", rich_markup_mode="rich"
    )
    group.command(
        "list", epilog=examples("saddlepoint data list", "saddlepoint data list --root ~/data")
    )(listed)
    group.command(
        "pull",
        epilog=examples(
            "saddlepoint data pull mnist",
            "saddlepoint data pull cifar10 --root ~/data --base-url https://mirror.example/cifar",
        ),
    )(pulled)
    app.add_typer(group, name="data")


def listed(
    root: _Root = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print the list as JSON, and nothing else.")
    ] = False,
) -> None:
    """List the data that `--data` knows by name, and whether it is here."""
    from saddlepoint.data import PULLABLE, SOURCES

    found = [(name, _shape(name, root), name in PULLABLE) for name in SOURCES]
    if json:
        dump([{"name": name, "shape": shape, "pullable": pull} for name, shape, pull in found])
        return
    rows = [
        [name, f"yes, images {shape}" if shape else "no", "yes" if pull else "–"]
        for name, shape, pull in found
    ]
    output().print(table(("name", "here", "can be pulled"), rows))
    say(
        "Also: a .npz file with arrays x and y, a folder with train.npz and test.npz, or file.py:function."
    )


def _shape(name: str, root: Path | None) -> list[int] | None:
    """Of one image, which is read: a folder that exists may still hold half a download."""
    from saddlepoint.data import DataError, load_data

    try:
        return list(load_data(name, n=1, root=root).x.shape[1:])
    except DataError:
        return None


def pulled(
    name: Annotated[
        str,
        typer.Argument(
            help="mnist, fashion-mnist, cifar10, cifar100, svhn, gtsrb or tiny-imagenet.",
            metavar="NAME",
        ),
    ],
    root: _Root = None,
    base_url: Annotated[
        str | None, typer.Option(help="A mirror that serves the same files.", metavar="URL")
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print where it is as JSON, and nothing else.")
    ] = False,
) -> None:
    """Download data, check it and unpack it; what is in place is kept."""
    from saddlepoint.data import pull

    folder = pull(name, root=root, base_url=base_url, progress=sys.stdout.isatty() and not json)
    if json:
        dump({"name": name, "folder": str(folder)})
        return
    say(f"{name} is in {folder}")
