"""Several runs as a site: a leaderboard and a page per run, all plain files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from saddlepoint.reports.comparison import Line, write_lines
from saddlepoint.reports.context import kept
from saddlepoint.reports.html import write as write_page
from saddlepoint.reports.published import Published


def write(runs: Sequence[Path], out: Path) -> Path:
    """`out/index.html`, and `out/RUN/report.html` for every folder of a run; the address of the index."""
    if not runs:
        raise ValueError("a site needs at least one run: give the folders that audits wrote.")
    lines = []
    for run, name in zip(runs, _names(runs), strict=True):
        audit = kept(run)
        write_page(audit, out / name / "report.html", folder=run, home="../index.html")
        lines.append(Line.of(audit, f"{name}/report.html", Published.read(run)))
    return write_lines(lines, out / "index.html")


def _names(runs: Sequence[Path]) -> list[str]:
    """A folder name for each run: its own, without what addresses do not take, and with a number where two are alike."""
    names: list[str] = []
    for run in runs:
        own = re.sub(r"[^A-Za-z0-9._-]+", "-", run.resolve().name).strip("-.") or "run"
        tried = (own if k == 1 else f"{own}-{k}" for k in range(1, len(runs) + 1))
        names.append(next(name for name in tried if name not in names))
    return names
