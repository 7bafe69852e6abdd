"""A browser, and pages to open in it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.reports.audits import SYMPTOMS, an_audit

from saddlepoint.games.reports.page import write_report as write_game
from saddlepoint.games.runs.play import run_game
from saddlepoint.reports.html import write_report
from saddlepoint.runs import run_spec
from saddlepoint.runs.executors import Serial
from saddlepoint.runs.game_spec import GameSpec
from saddlepoint.runs.spec import AttackSpec, DataSpec, RunSpec, ThreatSpec, validate

_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--window-size=1280,900",
)

_HOSTILE = '<script>document.title = "hijacked"</script>'


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    reason = "skipped: the browser tests need selenium (pip install '.[dev]')."
    webdriver = pytest.importorskip("selenium.webdriver", reason=reason)
    chromium = shutil.which("chromium")
    driver_file = shutil.which("chromedriver")
    if not (chromium and driver_file):
        pytest.skip("skipped: no chromium or chromedriver here (apt-get install chromium-driver).")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*_FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver_file))
    yield driver
    driver.quit()


@pytest.fixture
def visit(browser):
    """Open a file; at the end the browser log must be empty."""

    def go(path: Path):
        browser.get(path.as_uri())
        return browser

    browser.get_log("browser")
    yield go
    assert browser.get_log("browser") == []


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """Three runs: a real one with its cells, and two made by hand.

    Of the latter, one is inconclusive and one has published results.
    """
    folder = tmp_path_factory.mktemp("runs")
    attacks = (
        AttackSpec(kind="apgd", loss="ce", steps=5),
        AttackSpec(kind="fab", steps=5),
        AttackSpec(kind="fmn", steps=10),
    )
    spec = RunSpec(
        target="zoo:digits-pgd",
        data=DataSpec(n=60),
        threat=ThreatSpec(eps="0.3"),
        batch_size=30,
        attacks=attacks,
    )
    audits = {
        "real": run_spec(spec, folder / "real", executor=Serial()),
        "masked": an_audit(symptoms=SYMPTOMS, target="masked", robust_accuracy=0.99),
        "hand": an_audit(target=f"hand {_HOSTILE}"),
    }
    write_report(audits["real"], folder / "real" / "report.html")
    for name in ("masked", "hand"):
        audits[name].save(folder / name)
    (folder / "hand" / "published.toml").write_text('claimed = 0.7\nsource = "a paper"\n')
    return folder, audits


@pytest.fixture(scope="session")
def game(tmp_path_factory):
    """A small real game."""
    folder = tmp_path_factory.mktemp("game")
    spec = {
        "target": "zoo:digits-exits",
        "data": {"n": 16},
        "threat": {"eps": "0.15"},
        "attack": "fgsm",
        "subsets": "intervals",
    }
    record = run_game(validate(GameSpec, spec), folder)
    return record, write_game(record, folder / "report.html")
