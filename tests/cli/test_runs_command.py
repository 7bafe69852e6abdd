"""`saddlepoint runs` and `saddlepoint doctor`: what they print, and their exit codes."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest
from tests.cli.commands import TARGETS, call, error_of

from saddlepoint.audits import Audit
from saddlepoint.cli.verification import export_check
from saddlepoint.data import SOURCES
from saddlepoint.runs import doctor, verify
from saddlepoint.zoo import models

REQUEST = (
    "audit",
    f"{TARGETS}:make",
    "--budget",
    "quick",
    "--n",
    "20",
    "--eps",
    "0.05",
    "--batch-size",
    "10",
)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    out = tmp_path_factory.mktemp("made") / "mine"
    assert call(*REQUEST, "--out", out, "--quiet").exit_code == 0
    return out


@pytest.fixture
def run(made, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return shutil.copytree(made, tmp_path / "runs" / "mine").relative_to(tmp_path)


def test_list_shows_every_run_with_its_result(run):
    (Path("runs") / "torn").mkdir()
    (Path("runs") / "torn" / "run.json").write_text("{")
    lines = call("runs", "list").stdout.splitlines()
    [line] = [line.split() for line in lines if line.split()[:1] == ["mine"]]
    assert line[1:5] == ["audit", f"{TARGETS}:make", "Linf", "0.05"]
    assert line[-4:] == ["finished", "6/6", "as", "recorded"]
    assert any("torn" in line and "is damaged" in line for line in lines)
    found = json.loads(call("runs", "list", "--json").stdout)
    assert [one["finished"] for one in found] == [True, False]
    assert found[0]["robust_accuracy"] == Audit.load(run).robust_accuracy


def test_list_reports_an_empty_and_a_missing_folder(tmp_path):
    assert "There are no runs in" in call("runs", "list", tmp_path).stdout
    assert json.loads(call("runs", "list", tmp_path, "--json").stdout) == []
    assert "there is no folder" in error_of("runs", "list", tmp_path / "nowhere")


def test_show_prints_specification_events_and_times(run):
    result = call("runs", "show", run, "--cells")
    assert result.exit_code == 0, result.output
    assert f"finished, 6 of 6 cells; {Audit.load(run).verdict}: ≤ " in result.stdout
    assert result.stdout.count(" done ") == 6
    assert re.search(r"single-step attack +\d+\.\d", result.stdout)  # seconds of a diagnostic
    assert "requested" in result.stdout
    assert "concluded" in result.stdout
    assert 'radius = "0.05"' in result.stdout
    found = json.loads(call("runs", "show", run, "--json").stdout)
    assert [cell["state"] for cell in found["cells"]] == ["done"] * 6
    assert "no run.json" in error_of("runs", "show", "nowhere")


@pytest.mark.slow
def test_verify_exits_with_0_for_a_sound_run_and_with_1_for_a_changed_one(run):
    good = call("runs", "verify", run)
    assert good.exit_code == 0, good.output
    assert good.stdout.splitlines()[-1] == "The run agrees with its record."
    assert "Attacks were not run again" in good.stdout
    record = json.loads((run / "audit.json").read_text())
    (run / "audit.json").write_text(json.dumps({**record, "robust_accuracy": 0.99}))
    bad = call("runs", "verify", run, "--json")
    assert bad.exit_code == 1
    found = json.loads(bad.stdout)
    assert not found["passed"]
    assert [check["name"] for check in found["checks"] if not check["passed"]] == [
        "manifest",
        "accuracy",
        "record",
    ]
    assert "no run.json" in error_of("runs", "verify", "nowhere")


@pytest.mark.parametrize("words", [(), ("--per", "example"), ("--format", "latex")])
def test_an_exported_file_is_compared_with_its_run(run, words):
    call("runs", "export", run, *words, "-o", "file")
    good = export_check(run, Path("file"))
    assert good.passed, good.message
    assert "of this run." in good.message
    text = Path("file").read_bytes()
    place = text.rindex(b"apgd-ce")
    Path("file").write_bytes(text[:place] + b"square" + text[place + 7 :])
    bad = export_check(run, Path("file"))
    assert not bad.passed
    assert re.search(r"file, line \d+: recorded .*square.*, recomputed .*apgd-ce", bad.message)
    assert "cannot be compared" in export_check(run, Path("nowhere")).message


def test_a_misspelled_format_is_corrected(run):
    error = error_of("runs", "export", run, "--format", "cvs").replace("│ ", "").replace(" │", "")
    assert "'cvs' is not one of 'csv', 'json', 'latex', 'card'. Did you mean 'csv'?" in error


def test_export_writes_every_format(run):
    rows = list(csv.DictReader(io.StringIO(call("runs", "export", run).stdout)))
    assert [row["name"] for row in rows] == ["apgd-ce", "apgd-dlr"]
    assert (
        call("runs", "export", run, "--per", "example", "-o", "examples.csv").stdout
        == "examples.csv\n"
    )
    assert Path("examples.csv").read_bytes().count(b"\r\n") == 21
    assert json.loads(call("runs", "export", run, "--json").stdout)["n"] == 20
    assert r"\begin{tabular}" in call("runs", "export", run, "--format", "latex").stdout
    assert "## Adversarial robustness" in call("runs", "export", run, "--format", "card").stdout
    assert "--per is 'attack' or 'example'" in error_of("runs", "export", run, "--per", "image")
    assert call("runs", "export", run, "--format", "xml").exit_code == 2
    assert "No such file or directory" in error_of(
        "runs", "export", run, "-o", "no/such/folder.csv"
    )


def test_an_unfinished_run_is_not_exported(run):
    next((run / "cells").glob("*.json")).unlink()
    assert "is not finished (5 of 6 cells)" in error_of("runs", "export", run)


def test_an_interrupted_run_is_neither_verified_nor_reported(run, monkeypatch):
    monkeypatch.setattr(verify, "process_pool", None)  # no process is started
    for name in ("manifest.json", "audit.json"):
        (run / name).unlink()
    expected = (
        "Error: the run in runs/mine is not finished ({}). Run the same `saddlepoint audit` "
        "command again to continue."
    )
    for cells in ("6 of 6 cells, but no record", "1 of 6 cells"):
        assert error_of("runs", "verify", run) == expected.format(cells)
        assert error_of("report", run) == expected.format(cells)
        for path in sorted((run / "cells").glob("*.json"))[1:]:
            path.unlink()
    with pytest.raises(FileNotFoundError, match=r"Its run is not finished\."):
        Audit.load(run)


def test_gc_reports_the_unused_files_and_removes_them(run):
    assert call(*REQUEST, "--seed", "1", "--out", run, "--quiet").exit_code == 0
    planned = call("runs", "gc", run, "--dry-run").stdout
    assert "Would remove 6 cells and 9 diagnostics of other requests" in planned
    assert len(list((run / "cells").glob("*.json"))) == 12
    found = json.loads(call("runs", "gc", run, "--json").stdout)
    assert (found["cells"], found["removed"]) == (6, True)
    assert len(list((run / "cells").glob("*.json"))) == 6
    assert "Removed 0 cells" in call("runs", "gc", run).stdout
    assert "no run.json" in error_of("runs", "gc", "nowhere")


def test_doctor_exits_with_0_if_everything_works(tmp_path):
    result = call("doctor", "--root", tmp_path, "--runs", tmp_path / "runs")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-1] == "Everything that is needed works."
    found = {
        one["name"]: one for one in json.loads(call("doctor", "--root", tmp_path, "--json").stdout)
    }
    assert found["data digits"]["state"] == "ok"
    assert found["data cifar10"] == {
        "name": "data cifar10",
        "state": "note",
        "message": "not installed: saddlepoint data pull cifar10",
    }


def test_doctor_says_how_to_get_every_data_set_that_is_missing(tmp_path):
    missing = [
        finding.message
        for name, finding in findings(tmp_path, tmp_path).items()
        if name.startswith("data ") and finding.state == "note"
    ]
    assert len(missing) == len(SOURCES) - 1  # digits are embedded
    assert all(message.removeprefix("not installed").startswith(": ") for message in missing)


def findings(runs: Path = Path("runs"), root: Path = Path("nowhere")) -> dict[str, doctor.Finding]:
    return {finding.name: finding for finding in doctor.examine(runs, root)}


def test_a_package_that_cannot_be_imported_is_a_problem_and_an_optional_one_a_note(
    monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    monkeypatch.setitem(sys.modules, "ray", None)
    found = findings()
    assert found["scikit-learn"].state == "problem"
    assert "pip install" in found["scikit-learn"].message
    assert found["ray"].state == "note"
    assert "saddlepoint[ray]" in found["ray"].message
    assert "zoo" not in found  # needs the broken package
    assert call("doctor").exit_code == 1


def test_weights_with_another_hash_are_a_problem(monkeypatch, tmp_path):
    shutil.copytree(models.WEIGHTS, tmp_path / "weights")
    changed = tmp_path / "weights" / "digits-pgd.safetensors"
    changed.write_bytes(changed.read_bytes()[:-1] + b"\1")
    monkeypatch.setattr(
        "saddlepoint.zoo.target", lambda name: models.target(name, tmp_path / "weights")
    )
    found = findings()
    assert found["zoo:digits-pgd"].state == "problem"
    assert hashlib.sha256(changed.read_bytes()).hexdigest() in found["zoo:digits-pgd"].message


def test_damaged_data_and_missing_data_have_different_messages(tmp_path):
    (tmp_path / "mnist").mkdir()
    for name in ("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"):
        (tmp_path / "mnist" / name).write_bytes(b"half a download")
    found = findings(root=tmp_path)
    assert "not a whole gzip file" in found["data mnist"].message
    assert found["data svhn"].message == "not installed: saddlepoint data pull svhn"


def test_a_runs_folder_that_cannot_be_written_to_is_a_problem(monkeypatch, tmp_path):
    def fail(*_, **__):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(doctor.tempfile, "TemporaryFile", fail)
    found = findings(runs=tmp_path)
    assert found["runs folder"].state == "problem"
    assert "Read-only file system" in found["runs folder"].message


def test_more_threads_than_cores_give_a_note(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 0)
    monkeypatch.setattr("torch.get_num_threads", lambda: 7)
    assert "OMP_NUM_THREADS=1" in findings()["threads"].message
