"""The live page shows what is known while a run goes on, and leads to the report when it is over."""

from __future__ import annotations

import re

import pytest
from tests.reports.test_html import Page

from saddlepoint.reports.live import Both, LivePage
from saddlepoint.runs import Interrupted, run_spec
from saddlepoint.runs.executors import Serial
from saddlepoint.runs.spec import AttackSpec, DataSpec, RunSpec, ThreatSpec

_SPEC = RunSpec(
    target="zoo:digits-pgd", data=DataSpec(n=40), threat=ThreatSpec(eps="0.15"), batch_size=10,
    attacks=(AttackSpec(kind="apgd", loss="ce", steps=3), AttackSpec(kind="square", queries=5)),
)  # fmt: skip
_REFRESH = re.compile(r'<meta http-equiv="refresh" content="([^"]*)">')


class Snapshots:
    """A watch that keeps the page as it is after every cell."""

    def __init__(self, folder, stop_after=None):
        self.folder = folder
        self.pages = []
        self.stop_after = stop_after

    def begin(self, work, missing):
        self.take()

    def cell(self, cell, episode):
        self.take()
        if len(self.pages) - 1 == self.stop_after:
            raise Interrupted("stopped: run the same command to go on.")

    def say(self, message):
        pass

    def take(self):
        self.pages.append((self.folder / "live.html").read_text("utf-8"))


def watched(folder, stop_after=None):
    seen = Snapshots(folder, stop_after)
    with LivePage(folder, interval=0.0) as page:
        audit = run_spec(_SPEC, folder, executor=Serial(), watch=Both(page, seen))
    return audit, seen.pages, (folder / "live.html").read_text("utf-8")


def test_every_cell_is_counted_and_the_worst_case_only_comes_down(tmp_path):
    audit, pages, last = watched(tmp_path)
    cells = [int(re.search(r"cells done (\d+) of 12", Page(page).words)[1]) for page in pages]
    assert cells == list(range(13))
    assert (
        "worst case so far – nothing was attacked yet" in Page(pages[1]).words
    )  # the clean images alone
    standing = float(re.search(r"images that stand (\d+)", Page(last).words)[1])
    assert standing == pytest.approx(40 * audit.rows[-1].running)
    assert f"worst case so far {100 * audit.rows[-1].running:.1f} %" in Page(last).words
    spent = 40 * sum(row.forward + row.backward for row in audit.rows)
    assert int(
        re.search(r"passes spent ([\d,]+)", Page(last).words)[1].replace(",", "")
    ) == pytest.approx(spent)


def test_it_loads_itself_again_until_it_leads_to_the_report(tmp_path):
    _, pages, last = watched(tmp_path)
    assert {_REFRESH.search(page)[1] for page in pages} == {"1"}  # no more often than once a second
    assert _REFRESH.search(last)[1] == "0; url=report.html"
    assert (tmp_path / "report.html").is_file()


def test_a_stopped_run_says_how_to_go_on_and_what_was_done_counts_when_it_does(tmp_path):
    with pytest.raises(Interrupted):
        watched(tmp_path, stop_after=5)
    stopped = (tmp_path / "live.html").read_text("utf-8")
    assert "run the same command to go on" in Page(stopped).words
    assert _REFRESH.search(stopped) is None
    _, pages, _ = watched(tmp_path)
    first = int(re.search(r"cells done (\d+) of 12", Page(pages[0]).words)[1])
    assert first >= 5
    assert float(re.search(r"images that stand (\d+)", Page(pages[0]).words)[1]) > 0


def test_pages_are_written_no_more_often_than_asked(tmp_path):
    seconds = iter(
        range(1000)
    )  # the clock is read twice per cell at most: five seconds are at least two cells
    seen = Snapshots(tmp_path)
    with LivePage(tmp_path, interval=5.0, clock=lambda: float(next(seconds))) as page:
        run_spec(_SPEC, tmp_path, executor=Serial(), watch=Both(page, seen))
    assert 1 < len(set(seen.pages)) <= 8


def test_names_stay_text(tmp_path):
    hostile = _SPEC.model_copy(
        update={"attacks": (AttackSpec(kind="fgsm", name="<script>alert(1)</script>"),)}
    )
    with LivePage(tmp_path) as page:
        run_spec(hostile, tmp_path, executor=Serial(), watch=page)
    assert "<script" not in (tmp_path / "live.html").read_text("utf-8")
