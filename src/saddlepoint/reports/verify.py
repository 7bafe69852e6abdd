"""Verification of an audit with its report: the page is written again and compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import zip_longest

from saddlepoint.audits.verdict import Check
from saddlepoint.reading import ReadError, read_bytes
from saddlepoint.reports.context import ReportContext, load_audit
from saddlepoint.reports.html import REPORT, page
from saddlepoint.runs.replay import Replay
from saddlepoint.runs.store import Store
from saddlepoint.runs.verify import checks, of_other_version

_AROUND = 30  # characters of both texts in a message


def audit_checks(store: Store, replay: Replay) -> Iterator[Check]:
    """All checks of an audit, and of its report if there is one."""
    yield from checks(store, replay)
    folder = store.folder
    yield from report_check(store, lambda: page(ReportContext.load(load_audit(folder), folder)))


def report_check(store: Store, write: Callable[[], str]) -> Iterator[Check]:
    """Whether report.html is the page of the record; no check if there is no page to compare.

    Args:
        store: The folder of the run.
        write: Returns the page of the record.
    """
    path = store.folder / REPORT
    # Another version writes other pages.
    if not path.is_file() or of_other_version(store.run()):
        return
    try:
        recorded = read_bytes(path).decode()
        expected = write()
    except (ValueError, ReadError, OSError) as error:
        yield Check("report", False, f"{REPORT} cannot be compared: {error}")
        return
    if recorded == expected:
        yield Check("report", True, f"{REPORT} shows the record.")
    else:
        yield Check("report", False, _difference(recorded, expected))


def _difference(recorded: str, expected: str) -> str:
    pairs = zip_longest(recorded, expected, fillvalue="")
    place = next(k for k, (one, other) in enumerate(pairs) if one != other)
    part = slice(max(place - _AROUND, 0), place + _AROUND)
    return (
        f"{REPORT}, character {place}: recorded {recorded[part]!r}, recomputed {expected[part]!r}. "
        "Write it again with `saddlepoint report`."
    )
