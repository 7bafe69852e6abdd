"""`saddlepoint report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from saddlepoint.cli.console import dump, examples, say
from saddlepoint.cli.options import is_game


def add(app: typer.Typer) -> None:
    app.command(
        "report",
        epilog=examples(
            "saddlepoint report runs/digits-pgd-linf-0.15",
            "saddlepoint report runs/mine --out for-the-paper.html",
            "saddlepoint report runs/* -o site/",
            note="What others report for the same target goes into RUNDIR/published.toml, as shares: claimed, static, autoattack; "
            "and source, a text. The leaderboard shows it beside ours.",
        ),
    )(report)


def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders that audits or a game wrote.", metavar="RUNDIR...")],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="A file for one run, a folder for a site.", metavar="PATH",
            show_default="RUNDIR/report.html for one run, site for several",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print what was written as JSON, and nothing else.")] = False,
) -> None:  # fmt: skip
    """Write the HTML report of a saved audit or game again, or a site with a leaderboard of several audits."""
    from saddlepoint.games.reports.page import kept as kept_game
    from saddlepoint.games.reports.page import write as write_game
    from saddlepoint.reports.context import kept
    from saddlepoint.reports.html import write as write_page
    from saddlepoint.reports.site import write as write_site

    out = out or (runs[0] / "report.html" if len(runs) == 1 else Path("site"))
    page = out.suffix.lower() in (".html", ".htm")
    if page and len(runs) > 1:
        raise ValueError(
            f"{len(runs)} runs do not fit into one file, {out}. Name a folder: --out site/."
        )
    games = [run for run in runs if is_game(run)]
    if games and not page:
        raise ValueError(
            f"{games[0]} holds a game, and a site compares audits. Write its report alone: saddlepoint report {games[0]}."
        )
    if games:
        written = write_game(kept_game(games[0]), out)
    else:
        written = write_page(kept(runs[0]), out, folder=runs[0]) if page else write_site(runs, out)
    if json:
        dump({"page": str(written), "runs": [str(run) for run in runs]})
        return
    say(str(written))
