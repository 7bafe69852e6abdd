"""Write several runs as a static site: a leaderboard and one report per run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from saddlepoint.reports.comparison import Line, write_lines
from saddlepoint.reports.context import load_audit
from saddlepoint.reports.html import write_report
from saddlepoint.reports.published import Published


def write_site(runs: Sequence[Path], out: Path) -> Path:
    """Write `out/index.html` and `out/RUN/report.html` for every run.

    Args:
        runs: Folders of finished audits.
        out: Folder of the site.

    Returns:
        The path of the leaderboard, `out/index.html`.

    Raises:
        ValueError: There are no runs, or the audit of a run is damaged or of another run.
        FileNotFoundError: A folder contains no audit.
    """
    if not runs:
        raise ValueError("a site needs at least one run: pass folders that audits wrote.")
    lines = []
    for run, name in zip(runs, _folder_names(runs), strict=True):
        audit = load_audit(run)
        write_report(audit, out / name / "report.html", folder=run, index_url="../index.html")
        lines.append(Line.of(audit, f"{name}/report.html", Published.read(run)))
    return write_lines(lines, out / "index.html")


def _folder_names(runs: Sequence[Path]) -> list[str]:
    """Return the folder name of each run on the site.

    It is the name of the run folder without characters that are special in URLs. Runs with equal
    names get a number.
    """
    names: list[str] = []
    for run in runs:
        own = re.sub(r"[^A-Za-z0-9._-]+", "-", run.resolve().name).strip("-.") or "run"
        candidates = (own if k == 1 else f"{own}-{k}" for k in range(1, len(runs) + 1))
        names.append(next(name for name in candidates if name not in names))
    return names
