"""Layout of reports at three widths and in print, in a browser."""

from __future__ import annotations

import pytest

from saddlepoint.reports.context import load_audit
from saddlepoint.reports.html import write_report
from saddlepoint.reports.site import write_site

_UNFOLD = "document.querySelectorAll('details').forEach((e) => e.open = 1)"

_RECTANGLES = "map((e) => e.getBoundingClientRect().toJSON())"


def test_the_printed_page_is_light_and_shows_collapsed_content(visit, runs):
    browser = visit(runs[0] / "real" / "report.html")
    dark = [{"name": "prefers-color-scheme", "value": "dark"}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print", "features": dark})
    try:
        assert (
            browser.execute_script("return getComputedStyle(document.body).backgroundColor")
            == "rgb(255, 255, 255)"
        )
        assert (
            browser.execute_script("return getComputedStyle(document.body).color")
            == "rgb(28, 32, 36)"
        )
        assert not browser.find_element("tag name", "nav").is_displayed()
        assert browser.execute_script(
            "return [...document.querySelectorAll('details pre')].every((p) => p.checkVisibility())"
        )
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})


_CLIPPED = """
return [...document.querySelectorAll(".card, .scroll, th, td, p, li, pre")]
  .filter((e) => e.clientWidth > 0 && e.scrollWidth > e.clientWidth + 1)
  .map((e) => `${e.tagName}.${e.className}: ${e.textContent.slice(0, 60)}`)
"""
# A word is broken if a box as wide as the cell is higher than one where no word can be broken.
_BROKEN_WORDS = """
return [...document.querySelectorAll(".words th")].filter((cell) => {
  const before = cell.offsetHeight;
  cell.style.overflowWrap = cell.style.wordBreak = "normal";
  const wide = cell.scrollWidth > cell.clientWidth + 1 || cell.offsetHeight !== before;
  cell.removeAttribute("style");
  return wide;
}).map((cell) => cell.textContent)
"""
_CLIPPED_LABELS = """
const drawn = [...document.querySelectorAll("svg")].filter((e) => e.checkVisibility());
return drawn.flatMap((figure) => [...figure.querySelectorAll("text")].filter((text) => {
  const box = text.getBBox();
  return box.x < -1 || box.x + box.width > figure.viewBox.baseVal.width + 1;
}).map((text) => text.textContent))
"""
_SMALL_TEXT = """
const drawn = [...document.querySelectorAll("svg")].filter((e) => e.checkVisibility());
return Math.min(...drawn.flatMap((figure) => {
  const scale = figure.getBoundingClientRect().width / figure.viewBox.baseVal.width;
  return [...figure.querySelectorAll("text")].map(
    (text) => scale * parseFloat(getComputedStyle(text).fontSize));
}))
"""


@pytest.mark.parametrize("width", [390, 768, 1280])
def test_nothing_of_a_report_is_clipped_broken_or_too_small_to_read(visit, runs, width):
    folder, _ = runs
    for name in ("real", "masked"):
        if not (folder / name / "report.html").exists():
            write_report(load_audit(folder / name), folder / name / "report.html")
        browser = visit(folder / name / "report.html")
        browser.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500},
        )
        try:
            browser.execute_script(_UNFOLD)
            assert browser.execute_script(_CLIPPED) == []
            assert browser.execute_script(_BROKEN_WORDS) == []
            assert browser.execute_script(_CLIPPED_LABELS) == []
            assert browser.execute_script(_SMALL_TEXT) >= 8  # pixels
        finally:
            browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.mark.parametrize("width", [390, 768, 1280])
def test_charts_are_beside_each_other_on_wide_screens_only(visit, runs, width):
    browser = visit(runs[0] / "real" / "report.html")
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 1024, "deviceScaleFactor": 1, "mobile": width < 500},
    )
    try:
        left, right = browser.execute_script(
            "return [...document.querySelectorAll('.pair > section > .card')]." + _RECTANGLES
        )
        figures = browser.execute_script(
            "return [...document.querySelectorAll('.pair svg')]"
            ".filter((e) => e.checkVisibility()).length"
        )
        assert figures == 2  # one drawing of each
        if width == 1280:
            assert left["right"] < right["left"]
            assert left["top"] == right["top"]
            assert right["bottom"] <= 1024  # on the first screen
        else:
            assert left["bottom"] < right["top"]
            assert left["left"] == right["left"]
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.mark.parametrize("width", [390, 768, 1280])
def test_no_page_is_wider_than_its_window(visit, runs, game, tmp_path, width):
    folder, audits = runs
    pages = (
        write_site([folder / name for name in audits], tmp_path / "site"),
        folder / "real" / "report.html",
        game[1],
    )
    for page in pages:
        browser = visit(page)
        browser.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500},
        )
        try:
            assert browser.execute_script("return document.documentElement.scrollWidth") <= width
        finally:
            browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
