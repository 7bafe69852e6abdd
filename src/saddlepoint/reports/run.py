"""Runs an audit and writes its report."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from saddlepoint.audits import Audit, AuditRequest
from saddlepoint.reports.html import write_report
from saddlepoint.runs.cache import Watch
from saddlepoint.runs.runner import run_request
from saddlepoint.runs.watches import Watches


def run_and_report(
    request: AuditRequest,
    out: str | Path | None,
    watches: Sequence[Watch],
    *,
    workers: int | None,
    threads: int | None,
) -> Audit:
    """The audit of a model in memory, with a report if it is stored.

    Args:
        request: the request.
        out: folder of the results; None: they are not stored.
        watches: follow progress.
        workers: number of processes; None: one per core, if they save time.
        threads: torch threads per cell; None: see `saddlepoint.runs.cores.default_threads`.

    Raises:
        ValueError: there would be no process or no thread.
    """
    for name, number in (("workers", workers), ("threads", threads)):
        if number is not None and number < 1:
            raise ValueError(f"an audit needs at least one of its {name}, got {number}.")
    folder = None if out is None else Path(out)
    watch = Watches(watches) if watches else None
    result = run_request(request, out=folder, watch=watch, workers=workers, threads=threads)
    if watch is not None:
        watch.concluded(result)
    if folder is not None:
        started = time.perf_counter()
        write_report(result, folder / "report.html")
        result = replace(result, report_seconds=time.perf_counter() - started)
    return result
