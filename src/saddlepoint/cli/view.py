"""`saddlepoint view`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from saddlepoint.cli.console import examples, say


def add(app: typer.Typer) -> None:
    app.command(
        "view",
        epilog=examples(
            "saddlepoint view site", "saddlepoint view runs/digits-pgd-linf-0.15 --port 9000"
        ),
    )(view)


def view(
    folder: Annotated[
        Path, typer.Argument(help="A site, or the folder of a run.", metavar="FOLDER")
    ] = Path("site"),
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Where to listen; 0 takes any that is free.")
    ] = 8765,
) -> None:
    """Show reports in a browser, on this machine only, until Ctrl-C."""
    from saddlepoint.reports.serve import ADDRESS, server

    with server(folder, port) as listening:
        say(
            f"{folder} is at http://{ADDRESS}:{listening.server_port}/ for this machine only. Ctrl-C ends."
        )
        try:
            listening.serve_forever()
        except KeyboardInterrupt:
            say("Ended.")
