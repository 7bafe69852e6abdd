"""Verification of an audit with its report: the page is written again and compared."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import zip_longest

from saddlepoint.audits.verdict import Check
from saddlepoint.reading import ReadError, read_bytes
from saddlepoint.reports.context import ReportContext, load_audit
from saddlepoint.reports.html import REPORT, page
from saddlepoint.runs.manifest import record_changed
from saddlepoint.runs.replay import Replay
from saddlepoint.runs.store import Store
from saddlepoint.runs.verify import VERSION, checks, of_other_version

# Checks that may fail although the record is true.
_NOT_OF_THE_RECORD = {"manifest", "target", VERSION}
_AROUND = 30  # characters of both texts in a message


def audit_checks(store: Store, replay: Replay) -> Iterator[Check]:
    """All checks of an audit, and of its report if there is one."""
    folder = store.folder
    yield from with_report(
        checks(store, replay),
        store,
        lambda: page(ReportContext.load(load_audit(folder), folder)),
    )


def with_report(found: Iterable[Check], store: Store, write: Callable[[], str]) -> Iterator[Check]:
    """The checks of a run, and that of its report.

    If the record disagrees with the cells or the manifest, the report is not compared: it may be
    the page of the true record.

    Args:
        found: The other checks of the run.
        store: The folder of the run.
        write: Returns the page of the record.
    """
    failed = set()
    for check in found:
        if not check.passed:
            failed.add(check.name)
        yield check
    if failed <= _NOT_OF_THE_RECORD and not record_changed(store.folder):
        yield from _report_check(store, write, confirmed=failed <= {"manifest"})


def _report_check(store: Store, write: Callable[[], str], *, confirmed: bool) -> Iterator[Check]:
    """Whether report.html is the page of the record; no check if there is no page to compare.

    Args:
        store: The folder of the run.
        write: Returns the page of the record.
        confirmed: Whether the record was confirmed, so that a new page would be a true one.
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
        yield Check("report", False, _difference(recorded, expected, confirmed))


def _difference(recorded: str, expected: str, confirmed: bool) -> str:
    pairs = zip_longest(recorded, expected, fillvalue="")
    place = next(k for k, (one, other) in enumerate(pairs) if one != other)
    part = slice(max(place - _AROUND, 0), place + _AROUND)
    advice = " Write it again with `saddlepoint report`." if confirmed else ""
    return (
        f"{REPORT}, character {place}: recorded {recorded[part]!r}, recomputed {expected[part]!r}."
        f"{advice}"
    )
