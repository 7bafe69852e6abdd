"""The live page shows the progress of a run and redirects to the report at its end."""

from __future__ import annotations

import re

import pytest
from tests.reports.test_html import Page

from saddlepoint.reports.html import write_report
from saddlepoint.reports.live import LivePage
from saddlepoint.runs import Interrupted, run_spec
from saddlepoint.runs.executors import Serial
from saddlepoint.runs.spec import AttackSpec, DataSpec, RunSpec, ThreatSpec
from saddlepoint.runs.watches import Watches

_SPEC = RunSpec(
    target="zoo:digits-pgd",
    data=DataSpec(n=40),
    threat=ThreatSpec(eps="0.15"),
    batch_size=10,
    attacks=(AttackSpec(kind="apgd", loss="ce", steps=3), AttackSpec(kind="square", queries=5)),
)
_REFRESH = re.compile(r'<meta http-equiv="refresh" content="([^"]*)">')


class Snapshots:
    """Keeps the page as it is after every cell; can interrupt the run."""

    def __init__(self, folder, stop_after=None):
        self.folder = folder
        self.pages = []
        self.stop_after = stop_after

    def begin(self, work, missing):
        self.take()

    def cell(self, cell, episode):
        self.take()
        if len(self.pages) - 1 == self.stop_after:
            raise Interrupted("stopped: run the same command to resume.")

    def measure(self, missing): ...

    def measured(self, cell): ...

    def say(self, message): ...

    def take(self):
        self.pages.append((self.folder / "live.html").read_text("utf-8"))


def watched(folder, stop_after=None):
    """The audit, the page after every cell, and the last page."""
    snapshots = Snapshots(folder, stop_after)
    with LivePage(folder, interval=0.0) as page:
        audit = run_spec(_SPEC, folder, executor=Serial(), watch=Watches((page, snapshots)))
        write_report(audit, folder / "report.html")
    return audit, snapshots.pages, (folder / "live.html").read_text("utf-8")


def number(pattern, page):
    """The number that a pattern with one group finds on a page."""
    return int(re.search(pattern, Page(page).words)[1].replace(",", ""))


def test_every_cell_is_counted_and_the_last_page_shows_the_worst_case_of_the_record(tmp_path):
    audit, pages, last = watched(tmp_path)
    assert [number(r"cells done (\d+) of 12", page) for page in pages] == list(range(13))
    # After the first cell only clean images were evaluated.
    assert "robust accuracy so far – no image was attacked yet" in Page(pages[1]).words
    unbroken = number(r"images not broken (\d+)", last)
    assert unbroken == pytest.approx(40 * audit.rows[-1].running)
    assert f"robust accuracy so far {100 * audit.rows[-1].running:.1f} %" in Page(last).words
    passes = 40 * sum(row.forward + row.backward for row in audit.rows)
    assert number(r"passes so far ([\d,]+)", last) == pytest.approx(passes)


def test_the_page_shows_the_current_stage(tmp_path):
    _, pages, _ = watched(tmp_path)
    assert "Stage plan: 2 attacks: apgd, square." in Page(pages[0]).words
    assert "Stage attack: 12 of 12 cells to compute." in Page(pages[1]).words


def test_the_page_reloads_until_it_redirects_to_the_report(tmp_path):
    _, pages, last = watched(tmp_path)
    assert {_REFRESH.search(page)[1] for page in pages} == {"1"}  # at most once per second
    assert _REFRESH.search(last)[1] == "0; url=report.html"
    assert (tmp_path / "report.html").is_file()


def test_a_stopped_run_says_how_to_resume_and_its_cells_count_after_resuming(tmp_path):
    with pytest.raises(Interrupted):
        watched(tmp_path, stop_after=5)
    stopped = (tmp_path / "live.html").read_text("utf-8")
    assert "run the same command to resume" in Page(stopped).words
    assert _REFRESH.search(stopped) is None
    _, pages, _ = watched(tmp_path)
    assert number(r"cells done (\d+) of 12", pages[0]) >= 5
    assert number(r"images not broken (\d+)", pages[0]) > 0


def test_pages_are_written_at_most_once_per_interval(tmp_path):
    # The clock is read at most twice per cell: five seconds are at least two cells.
    seconds = iter(range(1000))
    snapshots = Snapshots(tmp_path)
    with LivePage(tmp_path, interval=5.0, clock=lambda: float(next(seconds))) as page:
        run_spec(_SPEC, tmp_path, executor=Serial(), watch=Watches((page, snapshots)))
    assert 1 < len(set(snapshots.pages)) <= 8


def test_names_are_text(tmp_path):
    hostile = _SPEC.model_copy(
        update={"attacks": (AttackSpec(kind="fgsm", name="<script>alert(1)</script>"),)}
    )
    with LivePage(tmp_path) as page:
        run_spec(hostile, tmp_path, executor=Serial(), watch=page)
    assert "<script" not in (tmp_path / "live.html").read_text("utf-8")
