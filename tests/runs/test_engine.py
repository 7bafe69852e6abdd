"""Runs on a faster copy of the target have the same bytes wherever their cells are computed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.runs.runs import content, spec

from saddlepoint.runs import run_spec, work
from saddlepoint.runs.executors import Processes, Serial
from saddlepoint.runs.replay import Replay
from saddlepoint.runs.spec import AttackSpec
from saddlepoint.runs.store import Store
from saddlepoint.runs.verify import checks

ATTACKS = tuple(AttackSpec(kind="pgd", name=f"pgd-{k}", steps=20 + k, loss="ce") for k in range(2))


def run(folder: Path, executor, **changes):
    work.load.cache_clear()
    return run_spec(SPEC.model_copy(update=changes), folder, executor=executor)


SPEC = spec("normalized", n=64, attacks=ATTACKS)


@pytest.fixture(scope="module")
def serial(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "serial"
    assert run(folder, Serial()).engine.form == "folded"
    return folder


def test_a_resumed_run_attacks_the_same_form(serial, tmp_path):
    for name, data in content(serial).items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    for cell in [*(tmp_path / "cells").iterdir()][::2]:
        cell.unlink()
    run(tmp_path, Serial())
    assert content(tmp_path) == content(serial)


def test_the_form_is_stored_and_a_replay_computes_the_same_bytes(serial):
    stored = json.loads((serial / "run.json").read_text())
    assert stored["engine"] == {"form": "folded", "reason": "1 layer folded"}
    assert stored["spec"]["engine"] == "auto"
    work.load.cache_clear()
    found = {check.name: check for check in checks(Store(serial), Replay(None))}
    assert all(check.passed for check in found.values()), found
    assert "8 with the same bytes" in found["replay"].message


@pytest.mark.slow
def test_other_processes_attack_the_same_form(serial, tmp_path):
    run(tmp_path / "processes", Processes(2))
    assert content(tmp_path / "processes") == content(serial)


def test_cells_of_a_run_without_the_engine_have_other_keys(serial, tmp_path):
    assert run(tmp_path, Serial(), engine="off").engine.form == "plain"
    cells = [{path.name for path in (folder / "cells").iterdir()} for folder in (serial, tmp_path)]
    assert not cells[0] & cells[1]
