"""The pages in a real browser: no errors, every link works, numbers are those of the record."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from tests.reports.audits import a_large_audit, an_audit

from saddlepoint.audits.verdict import Verdict
from saddlepoint.games.reports.page import write_report as write_game
from saddlepoint.phrases import at_most, percent_cell
from saddlepoint.reports.html import write_report
from saddlepoint.reports.live import LivePage
from saddlepoint.reports.site import write_site
from saddlepoint.reports.style import DARK, LIGHT
from saddlepoint.runs.spec import RunSpec
from saddlepoint.runs.work import load

wait = pytest.importorskip("selenium.webdriver.support.wait")
_HOSTILE = '<script>document.title = "hijacked"</script>'
_FOLDED = ".folded > details"
_UNFOLD = "document.querySelectorAll('details').forEach((e) => e.open = 1)"
_AT_END = "return innerHeight + scrollY >= document.documentElement.scrollHeight - 1"
_RECTANGLES = "map((e) => e.getBoundingClientRect().toJSON())"


def texts(browser, selector):
    return [element.text for element in browser.find_elements("css selector", selector)]


def rgb(color):
    """The computed style of a hexadecimal color."""
    return f"rgb({', '.join(str(int(color[k : k + 2], 16)) for k in (1, 3, 5))})"


def assert_links_lead_to_sections(browser):
    """Click every link of the table of contents; returns the titles of the sections."""
    links = browser.find_elements("css selector", "nav a")
    sections = browser.find_elements("css selector", "section")
    titles = [section.find_element("tag name", "h2").text for section in sections]
    assert [link.text for link in links] == titles
    for link, section in zip(links, sections, strict=True):
        link.click()
        place = browser.execute_script("return arguments[0].getBoundingClientRect().top", section)
        assert -1 <= place <= 60 or browser.execute_script(_AT_END), link.text
        browser.execute_script("scrollTo(0, 0)")
    return set(titles)


def assert_inside(frame, parts):
    """Every rectangle lies inside the frame, up to one pixel."""
    for part in parts:
        assert frame["left"] - 1 <= part["left"] <= part["right"] <= frame["right"] + 1
        assert frame["top"] - 1 <= part["top"] <= part["bottom"] <= frame["bottom"] + 1


def test_links_lead_to_every_section_and_collapsed_content_opens(visit, runs):
    folder, _ = runs
    browser = visit(folder / "real" / "report.html")
    assert {
        "Robust accuracy by radius",
        "Robust accuracy by attack",
        "Winning attacks",
        "Cost",
        "Adversarial examples",
        "Loss curves",
    } <= assert_links_lead_to_sections(browser)
    # A link to a folded section has unfolded it.
    assert all(e.get_attribute("open") for e in browser.find_elements("css selector", _FOLDED))
    collapsed = browser.find_elements("css selector", "details:not([open])")
    assert len(collapsed) == 6
    for element in collapsed:
        element.find_element("tag name", "summary").click()
        assert element.find_element("css selector", "table, pre").is_displayed()
    assert browser.execute_script(
        "return [...document.images].every((image) => image.complete && image.naturalWidth > 0)"
    )


def test_numbers_on_the_page_are_those_of_the_record(visit, runs):
    folder, audits = runs
    audit = audits["real"]
    browser = visit(folder / "real" / "report.html")
    browser.execute_script(_UNFOLD)
    cards = texts(browser, ".numbers b")
    assert cards[:2] == [
        f"{percent_cell(audit.clean_accuracy)}",
        f"{at_most(audit.robust_accuracy)}",
    ]
    table = texts(browser, "#all-attacks > .card tbody tr")
    reasons = texts(browser, "#all-attacks > details tbody tr")
    assert len(table) == len(audit.rows) == len(reasons)
    for row, line in zip(audit.rows, table, strict=True):
        assert line.startswith(f"{row.name} {percent_cell(row.robust_accuracy)}")
        assert f" {percent_cell(row.running)} " in line
    broken = [int(line.split()[1]) for line in texts(browser, "#winning-attacks tbody tr")]
    assert sum(broken) == int((audit.correct < 0.5).sum())
    lines = texts(browser, "#loss-curves tbody tr")
    for row, line in zip(audit.rows, lines, strict=True):
        curve = row.loss_curve
        first = curve.known[0][1]
        last = curve.known[-1][1]
        assert line.startswith(
            f"{row.name} {curve.images[-1]} {curve.passes[-1]} {first:.4g} {last:.4g} "
        )
    # At the full radius the curve equals the worst case over all attacks: it counts every success.
    description = browser.find_element("css selector", "#robust-accuracy-by-radius desc")
    shares = re.findall(r": ([\d.]+) %", description.get_attribute("textContent"))
    assert float(shares[-1]) == pytest.approx(100 * audit.rows[-1].running, abs=0.051)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_loss_curves_are_drawn_inside_their_figure_in_the_colors_of_the_page(visit, runs, scheme):
    browser = visit(runs[0] / "real" / "report.html")
    browser.execute_script(_UNFOLD)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": features})
    try:
        frame, *parts = browser.execute_script(
            "const svg = document.querySelector('#loss-curves svg');"
            f"return [svg, ...svg.querySelectorAll('path, circle, text')].{_RECTANGLES}"
        )
        assert len(parts) > 10
        assert_inside(frame, parts)
        stroke = browser.execute_script(
            "return getComputedStyle(document.querySelector('#loss-curves .line')).stroke"
        )
        assert stroke == rgb((LIGHT if scheme == "light" else DARK)["primary"])
        title = browser.find_element("css selector", "#loss-curves svg[role=img] title")
        assert (
            title.get_attribute("textContent")
            == "Objective and misclassified images by forward passes"
        )
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})


def test_the_leaderboard_sorts_by_any_column_with_mouse_and_keyboard(visit, runs, tmp_path):
    folder, audits = runs
    browser = visit(
        write_site([folder / name for name in ("masked", "hand", "real")], tmp_path / "site")
    )

    def order():
        return [
            Path(link.get_attribute("href")).parent.name
            for link in browser.find_elements("css selector", ".leaderboard tbody a")
        ]

    def by(value, down):
        return sorted(audits, key=lambda name: value(audits[name]), reverse=down)

    titles = [title.strip() for title in texts(browser, ".leaderboard thead button")]
    assert titles == [
        "target",
        "clean accuracy",
        "claimed",
        "robust accuracy",
        "verdict",
        "images",
        "passes",
        "seconds",
    ]
    heads = dict(
        zip(titles, browser.find_elements("css selector", ".leaderboard thead th"), strict=True)
    )
    assert order()[0] == "hand"  # an inconclusive number is not first, however high
    columns = {
        "robust accuracy": lambda a: a.robust_accuracy,
        "seconds": lambda a: a.seconds,
        "images": lambda a: a.n,
    }
    for title, value in columns.items():
        for direction in ("descending", "ascending"):
            heads[title].find_element("tag name", "button").click()
            assert heads[title].get_attribute("aria-sort") == direction
            assert [value(audits[name]) for name in order()] == [
                value(audits[name]) for name in by(value, direction == "descending")
            ]
            assert len(browser.find_elements("css selector", "[aria-sort]")) == 1
    heads["target"].find_element("tag name", "button").send_keys("\n")
    assert order() == by(lambda a: a.target, False)
    assert "Sorted by target, ascending" in texts(browser, "[role=status]")[0]
    for direction in ("descending", "ascending"):
        heads["claimed"].find_element("tag name", "button").send_keys(" ")
        assert heads["claimed"].get_attribute("aria-sort") == direction
        assert order()[0] == "hand"  # missing values are last in both directions


def test_the_leaderboard_links_to_every_report_and_back(visit, runs, tmp_path):
    folder, audits = runs
    index = write_site([folder / name for name in audits], tmp_path / "site")
    for name, audit in audits.items():
        browser = visit(index)
        browser.find_element("css selector", f"a[href='{name}/report.html']").click()
        assert texts(browser, "h1") == [audit.target]
        browser.find_element("link text", "← All runs").click()
        assert texts(browser, "h1") == ["Comparison of audits"]


def test_a_script_in_a_name_is_text(visit, runs, tmp_path):
    folder, _ = runs
    browser = visit(write_site([folder / "hand"], tmp_path / "site"))
    assert _HOSTILE in texts(browser, ".leaderboard tbody th")[0]
    assert browser.title == "saddlepoint leaderboard"
    audit = an_audit()
    named = replace(
        audit,
        target=_HOSTILE,
        classes=(_HOSTILE,) * 10,
        rows=tuple(replace(r, name=_HOSTILE) for r in audit.rows),
    )
    browser = visit(write_report(named, tmp_path / "alone" / "report.html"))
    assert texts(browser, "h1") == [_HOSTILE]
    assert browser.title == f"{_HOSTILE}: {Verdict.CREDIBLE}"
    assert browser.find_elements("css selector", "script") == []


def test_the_report_of_10000_images_and_30_attacks_opens_within_three_seconds(visit, tmp_path):
    written = write_report(a_large_audit(), tmp_path / "report.html")
    assert written.stat().st_size < 8_000_000
    browser = visit(written)
    seconds = browser.execute_script(
        "return performance.getEntriesByType('navigation')[0].loadEventEnd / 1000"
    )
    assert 0 < seconds < 3
    assert len(browser.find_elements("css selector", "#all-attacks .numeric tbody tr")) == 30
    assert len(browser.find_elements("css selector", "#loss-curves path.line")) == 60
    assert len(browser.find_elements("css selector", "figure")) == 12


def test_a_live_page_reloads_and_redirects_to_the_report(visit, runs, tmp_path):
    folder = shutil.copytree(runs[0] / "real", tmp_path / "real")
    work = load(
        RunSpec.model_validate_json(
            json.dumps(json.loads((folder / "run.json").read_text())["spec"])
        )
    )
    with LivePage(folder) as page:
        page.begin(work, [])
        browser = visit(folder / "live.html")
        assert browser.title == "zoo:digits-pgd: running"
        assert "cells done\n8\nof 8; 0 left" in texts(browser, ".numbers .card")
    wait.WebDriverWait(browser, 10).until(lambda driver: driver.current_url.endswith("report.html"))
    assert browser.title == f"zoo:digits-pgd: {Verdict.INCONCLUSIVE}"


def test_links_lead_to_every_section_of_a_game_and_its_numbers_are_those_of_the_record(visit, game):
    record, path = game
    browser = visit(path)
    assert {
        "Payoff matrix",
        "Strategies under attack",
        "Accuracy by exit",
        "Cost",
    } <= assert_links_lead_to_sections(browser)
    for element in browser.find_elements("css selector", "details"):
        element.find_element("tag name", "summary").click()
        assert element.find_element("tag name", "pre").is_displayed()
    assert texts(browser, ".numbers b")[0] == f"{percent_cell(record.value.value)}"
    assert texts(browser, ".matrix .value") == [
        f"{100 * p:.1f}" for p in record.payoff.flatten().tolist()
    ]
    for strategy, line in zip(
        record.strategies, texts(browser, "#strategies-under-attack tbody tr"), strict=False
    ):
        assert line.startswith(f"{strategy.name} {percent_cell(strategy.clean.value)}")
        assert f" {percent_cell(strategy.per_image.value)} " in line


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_matrix_is_drawn_inside_its_figure_in_the_text_color_of_the_page(visit, game, scheme):
    browser = visit(game[1])
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": features})
    try:
        frame, *parts = browser.execute_script(
            "const svg = document.querySelector('.matrix');"
            f"return [svg, ...svg.querySelectorAll('rect, text')].{_RECTANGLES}"
        )
        assert len(parts) > 200
        assert_inside(frame, parts)
        fill = browser.execute_script(
            "return getComputedStyle(document.querySelector('.matrix .value')).fill"
        )
        assert fill == rgb((LIGHT if scheme == "light" else DARK)["text"])
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})


def test_a_script_in_a_name_of_a_game_is_text(visit, game, tmp_path):
    record, _ = game
    named = replace(
        record, target=_HOSTILE, rows=tuple(replace(row, name=_HOSTILE) for row in record.rows)
    )
    browser = visit(write_game(named, tmp_path / "report.html"))
    assert texts(browser, "h1") == [_HOSTILE]
    assert browser.title == f"{_HOSTILE}: exit game"
    assert browser.find_elements("css selector", "script") == []
