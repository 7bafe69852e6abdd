"""`saddlepoint report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from saddlepoint.cli.arguments import JsonOption
from saddlepoint.cli.console import dump, examples, say
from saddlepoint.cli.folders import is_game
from saddlepoint.phrases import count


def add(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(
        "report",
        epilog=examples(
            "saddlepoint report runs/digits-pgd-linf-0.15-digits-500-standard",
            "saddlepoint report runs/mine --out for-the-paper.html",
            "saddlepoint report runs/* -o site/",
            "saddlepoint report benchmarks/records -o docs/leaderboard",
            note="Numbers that others reported for the same target go into the file "
            "RUNDIR/published.toml, as fractions: claimed, static, autoattack; and source, a "
            "text. The leaderboard shows them beside the measured ones.",
        ),
    )(report)


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(help="Folders of audits, or the folder of a game.", metavar="RUNDIR..."),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="An HTML file for the report of one run, or a folder for a site.",
            metavar="PATH",
            show_default="RUNDIR/report.html for one run, site for several",
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Write the HTML report of a finished audit or game, or a site that compares several audits.

    A folder of records that `reproduce` wrote gives a leaderboard of published defenses.
    """
    out = out or (runs[0] / "report.html" if len(runs) == 1 else Path("site"))
    written = _write(runs, out)
    if json:
        dump({"page": str(written), "runs": [str(run) for run in runs]})
        return
    say(str(written))


def _write(runs: list[Path], out: Path) -> Path:
    """Write a page or a site, depending on the suffix of `out`, and return its path."""
    if len(runs) == 1 and out.suffix.lower() not in (".html", ".htm"):
        from saddlepoint.papers.leaderboard import is_record_folder, write_leaderboard

        if is_record_folder(runs[0]):
            return write_leaderboard(runs[0], out)
    from saddlepoint.games.reports.page import load_game
    from saddlepoint.games.reports.page import write_report as write_game
    from saddlepoint.reports.context import load_audit
    from saddlepoint.reports.html import write_report
    from saddlepoint.reports.site import write_site

    one_page = out.suffix.lower() in (".html", ".htm")
    if one_page and len(runs) > 1:
        raise ValueError(
            f"{count(len(runs), 'run')} do not fit into one file, {out}. Give a folder: --out "
            "site/."
        )
    games = [run for run in runs if is_game(run)]
    if games and not one_page:
        raise ValueError(
            f"{games[0]} contains a game, but a site compares audits. "
            f"Write its report alone: saddlepoint report {games[0]}."
        )
    if games:
        return write_game(load_game(games[0]), out)
    if one_page:
        return write_report(load_audit(runs[0]), out, folder=runs[0])
    return write_site(runs, out)
