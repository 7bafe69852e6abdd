"""`saddlepoint view`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from saddlepoint.cli.console import examples, say


def add(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(
        "view",
        epilog=examples("saddlepoint view site", "saddlepoint view runs/mine --port 9000"),
    )(view)


def view(
    folder: Annotated[
        Path,
        typer.Argument(
            help="A site that `saddlepoint report` wrote, or the folder of a run.",
            metavar="FOLDER",
        ),
    ] = Path("site"),
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of the server; 0: any free port.")
    ] = 8765,
) -> None:
    """Serve reports to a browser on this machine, until Ctrl-C."""
    from saddlepoint.reports.serve import ADDRESS, server

    with server(folder, port) as http:
        say(
            f"{folder} is at http://{ADDRESS}:{http.server_port}/ for this machine only. "
            "Press Ctrl-C to stop."
        )
        try:
            http.serve_forever()
        except KeyboardInterrupt:
            say("Ended.")
