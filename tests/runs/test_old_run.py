"""Folders that an earlier version wrote can still be opened.

`old_run` contains an audit of six images and a game with eight images on zoo:digits-exits. It was
written by the last version before symptoms, checklist items, verdicts, tensors and keys of the
specification got their present names, and before diagnostics were stored in `diagnostics`.
"""

from __future__ import annotations

import json
import shutil
import tomllib
from pathlib import Path

import pytest
from tests.cli.commands import call

from saddlepoint.audits import Audit
from saddlepoint.audits.verdict import ItemName, State, SymptomName, Verdict
from saddlepoint.games.runs.record import GameRecord
from saddlepoint.runs.store import Store

OLD = Path(__file__).with_name("old_run")


@pytest.fixture
def old(tmp_path, monkeypatch):
    """A copy of the folder of old runs, which is also the current folder."""
    monkeypatch.chdir(tmp_path)
    return shutil.copytree(OLD, tmp_path / "runs")


def output_of(*words):
    result = call(*words)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_stored_folders_have_the_old_names():
    """Otherwise the other tests would test nothing."""
    audit = json.loads((OLD / "audit" / "audit.json").read_text())
    game = json.loads((OLD / "game" / "game.json").read_text())
    assert (audit["schema"], audit["verdict"]) == (3, "cannot be told")
    assert "incomplete optimisation" in [one["name"] for one in audit["symptoms"]]
    assert "does not apply" in [item["state"] for item in audit["checklist"]]
    assert "the promise does not carry over" in [one["name"] for one in game["symptoms"]]
    assert (game["spec"]["threat"], game["passed"]["threat"]["eps"]) == (
        {"eps": "0.2", "norm": "linf"},
        "0.2",
    )
    assert Store(OLD / "audit" / "trials").keys()


def test_an_old_audit_is_loaded_with_the_present_names():
    audit = Audit.load(OLD / "audit")
    assert [one.name for one in audit.symptoms] == [
        SymptomName.SEVERAL_EXITS,
        SymptomName.INCOMPLETE_OPTIMIZATION,
    ]
    assert {item.name for item in audit.checklist} == set(ItemName)
    states = {item.name: item.state for item in audit.checklist}
    assert states[ItemName.BACKWARD] is State.NOT_APPLICABLE
    assert states[ItemName.SINGLE_STEP] is State.PASS
    assert audit.verdict is Verdict.INCONCLUSIVE
    assert any(row.loss_curve.value for row in audit.rows)
    assert audit.robust_accuracy == pytest.approx(5 / 6)


def test_an_old_game_is_loaded_with_the_present_names():
    game = GameRecord.load(OLD / "game")
    assert [one.name for one in game.symptoms] == [
        SymptomName.NO_GENERALIZATION,
        SymptomName.OUTSIDE_ATTACK,
    ]
    assert game.spec["schema_version"] == 2
    for spec in (game.spec, game.passed):
        assert spec["threat"] == {"radius": "0.2", "norm": "linf"}


def test_old_cells_are_loaded_with_the_present_names():
    store = Store(OLD / "audit")
    curves = [store.get(key).loss_curve for key in store.keys()]  # noqa: SIM118
    assert any(curve.numel() for curve in curves)


def test_runs_list_shows_old_runs(old):
    audit, game = json.loads(output_of("runs", "list", "runs", "--json"))
    assert (audit["kind"], audit["verdict"], audit["threat"]) == (
        "audit",
        "inconclusive",
        "Linf 0.15",
    )
    assert (audit["done"], audit["total"], audit["finished"]) == (6, 6, True)
    assert (game["kind"], game["done"], game["total"], game["finished"]) == ("game", 25, 25, True)
    assert (game["verdict"], game["threat"]) == ("value 100 %", "Linf 0.2")
    table = output_of("runs", "list", "runs")
    assert "inconclusive" in table
    assert "cannot be told" not in table


@pytest.mark.parametrize(("kind", "radius"), [("audit", "0.15"), ("game", "0.2")])
def test_runs_show_shows_old_runs(old, kind, radius):
    shown = output_of("runs", "show", f"runs/{kind}")
    assert f"{kind}: zoo:digits-exits" in shown
    assert "requested" in shown
    assert "asked" not in shown
    specification = tomllib.loads(shown.partition("Specification\n")[2])
    assert specification["schema_version"] == 2
    assert specification["threat"]["radius"] == radius


def test_a_report_of_an_old_audit_can_be_written(old):
    output_of("report", "runs/audit")
    page = (old / "audit" / "report.html").read_text()
    assert "incomplete optimization" in page
    assert "inconclusive" in page.lower()
    for word in ("incomplete optimisation", "does not apply", "cannot be told"):
        assert word not in page


def test_a_report_of_an_old_game_can_be_written(old):
    output_of("report", "runs/game")
    page = (old / "game" / "report.html").read_text()
    assert "the value does not generalize" in page
    assert "the promise does not carry over" not in page


@pytest.mark.parametrize("per", ["attack", "example"])
def test_an_old_audit_can_be_exported(old, per):
    lines = output_of("runs", "export", "runs/audit", "--per", per).splitlines()
    assert len(lines) == 1 + {"attack": 5, "example": 6}[per]


@pytest.mark.slow
def test_an_old_audit_is_verified_by_its_outcomes(old):
    result = call("runs", "verify", "runs/audit")
    assert result.exit_code == 0, result.output
    words = {line.split()[1].rstrip(":"): line.split()[0] for line in checks_of(result.stdout)}
    assert set(words.values()) == {"ok"}
    assert {"cells", "images", "labels", "inside", "answers", "margins", "accuracy"} <= set(words)
    assert {"version", "outcomes"} <= set(words)
    text = " ".join(result.stdout.split())
    assert "An earlier version wrote this run." in text
    assert "Hashes of targets and cells differ between versions" in text
    assert "83.33 % of 6 worst points are classified correctly, as recorded." in text
    assert "It is verified by its outcomes" in text


@pytest.mark.slow
def test_verification_of_an_old_audit_detects_a_changed_outcome(old):
    path = old / "audit" / "audit.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "robust_accuracy": 1.0}))
    result = call("runs", "verify", "runs/audit")
    assert result.exit_code == 1
    assert "DISAGREES accuracy" in result.stdout
    assert "The run does not agree with its record." in result.stdout


@pytest.mark.slow
def test_verification_of_an_old_game_explains_what_is_unknown(old):
    result = call("runs", "verify", "runs/game")
    assert result.exit_code == 1
    text = " ".join(result.stdout.split())
    assert "ok cells: 25 cells have the recorded hash and seal." in text
    assert "UNKNOWN version: An earlier version wrote this run." in text
    assert "Its points are not evaluated again." in text
    assert "DISAGREES" not in text


def test_gc_removes_the_trials_of_an_old_run_and_keeps_its_cells(old):
    freed = json.loads(output_of("runs", "gc", "runs/audit", "--json"))
    assert freed["diagnostics"] == len(Store(OLD / "audit" / "trials").keys())
    assert freed["cells"] == 0
    assert Store(old / "audit" / "trials").keys() == []
    assert Store(old / "audit").keys() == Store(OLD / "audit").keys()


def checks_of(output):
    """The lines that begin with the outcome of a check."""
    outcomes = ("ok", "UNKNOWN", "DISAGREES")
    return [line for line in output.splitlines() if line[:9].strip() in outcomes]
