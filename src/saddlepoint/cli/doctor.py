"""`saddlepoint doctor`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from saddlepoint.cli.console import examples, say

_STYLES = {"ok": "", "note": "yellow", "problem": "red"}
_BROKEN = 1  # exit code of an installation in which something does not work


def add(app: typer.Typer) -> None:
    app.command(
        "doctor", epilog=examples("saddlepoint doctor", "saddlepoint doctor --root ~/data --json")
    )(doctor)


def doctor(
    root: Annotated[
        Path | None,
        typer.Option(
            help="The folder that holds the data.",
            metavar="FOLDER",
            show_default="$SADDLEPOINT_DATA, or the user's cache",
        ),
    ] = None,
    runs: Annotated[
        Path, typer.Option(help="The folder that runs are written to.", metavar="FOLDER")
    ] = Path("runs"),
    json: Annotated[
        bool, typer.Option("--json", help="Print the findings as JSON, and nothing else.")
    ] = False,
) -> None:
    """Check the installation: packages, devices, embedded models, data, and whether runs can be written. Says what to do."""
    from saddlepoint.runs.doctor import examine

    found = []
    for finding in examine(runs, root):
        found.append(finding)
        if not json:
            say(f"{finding.state:9}{finding.name}: {finding.message}", style=_STYLES[finding.state])
    broken = sum(finding.state == "problem" for finding in found)
    if json:
        import json as notation

        typer.echo(notation.dumps([asdict(finding) for finding in found], indent=1))
    else:
        say(
            f"{broken} of {len(found)} things are broken."
            if broken
            else "Everything that is needed works.",
            style="bold",
        )
    if broken:
        raise typer.Exit(_BROKEN)
