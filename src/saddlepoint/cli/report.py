"""`saddlepoint report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from saddlepoint.cli.text import examples, say


def add(app: typer.Typer) -> None:
    app.command(
        "report",
        epilog=examples("saddlepoint report runs/digits-pgd-linf-0.15", "saddlepoint report runs/mine --out for-the-paper.html"),
    )(report)


def report(
    run: Annotated[Path, typer.Argument(help="The folder that an audit wrote.", metavar="RUNDIR")],
    out: Annotated[Path | None, typer.Option(help="The file to write.", metavar="FILE", show_default="RUNDIR/report.html")] = None,
) -> None:
    """Write the HTML report of a saved audit again."""
    from saddlepoint.auditing import Audit

    say(str(Audit.load(run).to_html(out or run / "report.html")))
