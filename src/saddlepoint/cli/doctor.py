"""`saddlepoint doctor`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from saddlepoint.cli.arguments import JsonOption, RootOption
from saddlepoint.cli.console import dump, examples, say
from saddlepoint.phrases import count_of

_STYLES = {"ok": "", "note": "yellow", "problem": "red"}
_BROKEN = 1  # exit code if a part of the installation does not work


def add(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(
        "doctor",
        epilog=examples(
            "saddlepoint doctor",
            "saddlepoint doctor --root ~/data --json",
            note="Exit code 0: everything that is needed works; 1: something does not.",
        ),
    )(doctor)


def doctor(
    root: RootOption = None,
    runs: Annotated[
        Path, typer.Option(help="Folder that runs are written to.", metavar="FOLDER")
    ] = Path("runs"),
    json: JsonOption = False,
) -> None:
    """Check the installation, and say how to fix what does not work.

    The command checks packages, devices, embedded models and data sets, and whether runs can be
    written.
    """
    from saddlepoint.runs.doctor import examine

    findings = []
    for finding in examine(runs, root):
        findings.append(finding)
        if not json:
            say(f"{finding.state:9}{finding.name}: {finding.message}", style=_STYLES[finding.state])
    broken = sum(finding.state == "problem" for finding in findings)
    if json:
        dump([asdict(finding) for finding in findings])
    elif broken:
        say(f"{count_of(broken, len(findings), 'check')} found a problem.", style="bold")
    else:
        say("Everything that is needed works.", style="bold")
    if broken:
        raise typer.Exit(_BROKEN)
