"""Arguments and options that several commands share and that are no part of a specification."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

TargetArgument = Annotated[
    str,
    typer.Argument(
        help="The model or defense: file.py:factory, package.module:factory, zoo:NAME or "
        "FILE.onnx.",
        metavar="TARGET",
    ),
]
RootOption = Annotated[
    Path | None,
    typer.Option(
        help="Folder that contains the data sets.",
        metavar="FOLDER",
        show_default="$SADDLEPOINT_DATA, or the cache folder of the user",
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print the result as JSON and nothing else.")
]
