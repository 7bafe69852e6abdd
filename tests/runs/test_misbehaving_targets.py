"""Targets that misbehave in the middle of a run: one line per failure, and the rest is kept."""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from tests.cli.commands import call, error_of
from tests.runs.runs import ATTACKS, spec

from saddlepoint.cli import main
from saddlepoint.runs import work
from saddlepoint.runs.cache import CellsFailedError
from saddlepoint.runs.executors import Processes, Serial
from saddlepoint.runs.global_state import kept_globals
from saddlepoint.runs.runner import run_spec
from saddlepoint.runs.store import Store

TARGETS = Path(__file__).with_name("misbehaving_targets.py")
SPEC = spec(n=20, attacks=ATTACKS[:3]).model_copy(update={"target": f"{TARGETS}:late"})
ALWAYS = 10**9


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


class Log(NamedTuple):
    """The log of calls, and how many of them the probes need."""

    path: Path
    probes: int

    def misbehave(self, *parts: tuple[int, int, str]) -> None:
        """Misbehave from a call to another, counted from now."""
        now = self.path.stat().st_size
        lines = [f"{now + first} {now + last} {name}\n" for first, last, name in parts]
        self.path.with_suffix(".plan").write_text("".join(lines))


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """The target is loaded and probed once for all tests."""
    path = tmp_path_factory.mktemp("misbehaving") / "calls"
    path.with_suffix(".plan").write_text("")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MISBEHAVE_LOG", str(path))
        work.load.cache_clear()
        work.load(SPEC)
        yield Log(path, path.stat().st_size)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("exits", "the target called sys.exit(0)"),
        ("raises", "the target raised LookupError: no such route (misbehaving_targets.py, line"),
        ("shape", "at every call, got shape [10]"),
        ("rows", "at every call, got shape ["),
        ("nothing", "at every call, got NoneType"),
        ("memory", "ran out of memory"),
        ("nan", "its outputs change during the run"),
    ],
)
def test_a_failure_names_adversary_and_images_and_keeps_finished_cells(name, message, log):
    log.misbehave((12, ALWAYS, name))
    with pytest.raises(CellsFailedError) as error:
        run_spec(SPEC, Path("run"), executor=Serial())
    first, *failures = str(error.value).splitlines()
    assert len(Store(Path("run")).keys()) >= 1
    assert "of this step" in first
    assert 1 <= len(failures) <= 3
    assert " on images " in failures[0]
    assert message in failures[0]
    stores = (Store(Path("run")), Store(Path("run/diagnostics")))
    events = [event["event"] for store in stores for event in store.events()]
    assert events.count("failed") == len(failures)


def test_a_target_that_changes_the_folder_does_not_move_the_results(log):
    log.misbehave((12, ALWAYS, "globals"))
    run_spec(SPEC, Path("run"), executor=Serial())
    assert Path("run/audit.json").is_file()
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.slow
def test_cells_that_crash_or_hang_in_a_worker_fail_alone(log):
    """The first worker crashes in the last cell but one, and the second one hangs in the last."""
    log.misbehave()
    loaded = work.load(SPEC)
    calls = []
    for cell in loaded.keys:
        before = log.path.stat().st_size
        work.result_of(loaded, cell)
        calls.append(log.path.stat().st_size - before)
    # A worker probes the target before it computes its first cell.
    crash = log.probes + sum(calls[:-2]) + 1
    hang = crash + log.probes + 1
    log.misbehave((crash, crash, "segfaults"), (hang, hang, "hangs"))
    executor = Processes(workers=1, timeout=5.0, retries=0)
    with pytest.raises(CellsFailedError) as error:
        run_spec(SPEC, Path("run"), executor=executor)
    first, *failures = str(error.value).splitlines()
    assert first.startswith("2 cells failed because of the target; 14 of 16 cells of this step")
    assert "its worker process died once (SIGSEGV, an invalid address)" in failures[0]
    assert "it took longer than 5 s (--timeout)" in failures[1]
    assert len(Store(Path("run")).keys()) == 14


def test_global_settings_are_restored():
    before = Path.cwd(), torch.get_default_dtype(), torch.get_num_threads(), random.getstate()
    with kept_globals():
        os.chdir("/")
        torch.set_default_dtype(torch.float64)
        torch.set_num_threads(2)
        torch.set_grad_enabled(False)
        random.seed(7)
    after = Path.cwd(), torch.get_default_dtype(), torch.get_num_threads(), random.getstate()
    assert after == before
    assert torch.is_grad_enabled()


def test_a_target_that_exits_is_an_error_with_exit_code_2():
    words = ("audit", f"{TARGETS}:leaves_at_once", "--n", "20", "--out", "run")
    assert "called sys.exit(0)" in error_of(*words)


def test_a_target_that_fits_four_images_is_audited_in_small_batches():
    words = ["audit", f"{TARGETS}:four", "--n", "20", "--budget", "quick", "--allow-unusual"]
    result = call(*words, "--batch-size", "1", "--eps", "0.05", "--out", "run", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["n"] == 20


def test_json_stays_valid_if_a_target_writes_to_the_file_descriptor(capfd, monkeypatch):
    target = f"{TARGETS}:writes_to_descriptor"
    words = ["audit", target, "--n", "8", "--eps", "0.05", "--attacks", "fgsm", "--allow-unusual"]
    monkeypatch.setattr(sys, "argv", ["saddlepoint", *words, "--out", "run", "--json"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    printed, errors = capfd.readouterr()
    assert json.loads(printed)["n"] == 8
    assert "progress" in errors
