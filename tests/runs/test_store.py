"""Stored runs resume after kills, damage and full disks, and can be shared by processes."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import shutil
import signal
import threading
import time
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import torch
from tests.runs.runs import ATTACKS, CountingExecutor, content, record_without_times, spec

import saddlepoint as sp
from saddlepoint.runs import executors as executor_module
from saddlepoint.runs import store as store_module
from saddlepoint.runs.cache import DiskCache, Interrupted, StrangeCellError
from saddlepoint.runs.executors import Processes, Serial
from saddlepoint.runs.packed_cell import PackedCell
from saddlepoint.runs.runner import run_spec
from saddlepoint.runs.store import Store, StoreError
from saddlepoint.runs.work import FailedCell, load

# Children start at once, because the server has imported torch.
FORK = multiprocessing.get_context("forkserver")
FORK.set_forkserver_preload(["saddlepoint.runs.runner"])


def computed(spec, out) -> int:
    """How many attack cells a run computes."""
    executor = CountingExecutor()
    run_spec(spec, out, executor=executor)
    return len(executor.attacks)


def child(spec, out):
    os.environ["OMP_NUM_THREADS"] = "1"
    run_spec(spec, out, executor=Serial())


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """The folder of an uninterrupted run."""
    out = tmp_path_factory.mktemp("whole") / "run"
    run_spec(spec(), out, executor=Serial())
    return out


def test_a_run_stores_one_cell_per_adversary_and_group(whole):
    assert len(Store(whole).keys()) == 40


def test_run_json_lists_all_stored_diagnostics(whole):
    names = Store(whole).run()["diagnostics"]
    assert names
    assert names == Store(whole / "diagnostics").keys()


@pytest.mark.slow
def test_a_run_killed_at_25_random_moments_and_resumed_equals_an_uninterrupted_run(whole, tmp_path):
    moments = np.random.default_rng(0).uniform(0.0, 0.25, 25)
    kills = 0
    for moment in moments:
        process = FORK.Process(target=child, args=(spec(), tmp_path / "run"))
        process.start()
        process.join(moment + 0.05)
        if process.is_alive():
            kills += 1
            os.kill(process.pid, signal.SIGKILL)
        process.join()
    assert kills >= 10  # otherwise most runs had ended before, and nothing was tested
    run_spec(spec(), tmp_path / "run", executor=Serial())
    assert content(tmp_path / "run") == content(whole)
    assert record_without_times(tmp_path / "run") == record_without_times(whole)


def test_a_finished_run_computes_no_cell_again(whole):
    executor = CountingExecutor()
    run_spec(spec(), whole, executor=executor)
    assert executor.computed == []


def test_a_finished_run_that_is_only_read_keeps_its_times(whole, tmp_path):
    out = shutil.copytree(whole, tmp_path / "run")
    record = json.loads((out / "audit.json").read_text())
    (out / "audit.json").write_text(json.dumps({**record, "seconds": 600.0}))
    again = run_spec(spec(), out, executor=Serial())
    stored = sp.Audit.load(out)
    assert again.seconds == stored.seconds == 600.0
    assert again.stages == stored.stages == sp.Audit.load(whole).stages
    Store(out).discard(Store(out).keys()[0])  # a resumed run measures its own time
    assert run_spec(spec(), out, executor=Serial()).seconds < 600.0


def test_a_changed_attack_computes_its_own_cells_only(whole, tmp_path):
    whole = shutil.copytree(whole, tmp_path / "run")
    changed = (*ATTACKS[:4], ATTACKS[4].model_copy(update={"steps": 11}), *ATTACKS[5:])
    assert computed(spec(attacks=changed), whole) == 4
    assert computed(spec(), whole) == 0  # cells of the other request are still there


@pytest.mark.parametrize(
    "damage",
    ["truncated tensors", "flipped bit", "truncated record", "lost tensors", "edited record"],
)
def test_a_damaged_cell_is_reported_and_computed_again(damage, tmp_path):
    run_spec(spec(), tmp_path, executor=Serial())
    before = content(tmp_path)
    keys = Store(tmp_path).keys()
    cells = tmp_path / "cells"
    key = next(key for key in keys if "apgd" in (cells / f"{key}.json").read_text())
    record = cells / f"{key}.json"
    tensors = cells / f"{key}.safetensors"
    data = bytearray(tensors.read_bytes())
    if damage == "truncated tensors":
        tensors.write_bytes(data[:-10])
    elif damage == "flipped bit":
        data[-3] ^= 1
        tensors.write_bytes(data)
    elif damage == "truncated record":
        record.write_bytes(record.read_bytes()[:40])
    elif damage == "lost tensors":
        tensors.unlink()
    else:
        record.write_text(record.read_text().replace("apgd", "agpd"))
    with pytest.raises(StoreError, match=key[:12]):
        Store(tmp_path).get(key)
    assert computed(spec(), tmp_path) == 1
    assert content(tmp_path) == before
    assert any(
        event["event"] == "damaged" and event["key"] == key for event in Store(tmp_path).events()
    )


def test_a_full_disk_raises_a_clear_error_and_loses_no_finished_cell(tmp_path, monkeypatch):
    real = os.fsync
    written = []

    def full(descriptor):
        written.append(descriptor)
        if len(written) > 30:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(store_module.os, "fsync", full)
    with pytest.raises(StoreError, match=r"full.*kept"):
        run_spec(spec(), tmp_path, executor=Serial())
    monkeypatch.undo()
    finished = Store(tmp_path).keys()
    assert len(finished) >= 5
    assert not [p for p in (tmp_path / "cells").iterdir() if p.name.startswith(".")]
    assert computed(spec(), tmp_path) == 40 - len(finished)


@pytest.mark.slow
def test_two_processes_in_one_folder_share_the_cells(whole, tmp_path):
    pair = [FORK.Process(target=child, args=(spec(), tmp_path)) for _ in range(2)]
    for process in pair:
        process.start()
    for process in pair:
        process.join(60)
    assert [p.exitcode for p in pair] == [0, 0]
    assert content(tmp_path) == content(whole)
    for store in (Store(tmp_path), Store(tmp_path / "diagnostics")):
        events = [event["key"] for event in store.events() if event["event"] == "cell"]
        assert sorted(events) == store.keys()  # no cell was computed twice


def test_incomplete_records_of_killed_processes_are_removed_when_a_run_continues(tmp_path):
    """A number that no process can have, the parent of this process, and a file of the user."""
    killed = tmp_path / ".spec.toml.999999999"
    others = [tmp_path / f".spec.toml.{os.getppid()}", tmp_path / ".notes.toml.999999999"]
    for path in (killed, *others):
        path.write_text("incomplete")
    Store(tmp_path).opened()
    assert not killed.exists()
    assert all(path.exists() for path in others)


def test_a_cell_that_another_process_computes_does_not_block_this_one(tmp_path):
    store = Store(tmp_path).opened()
    with store.claim("ab" * 32) as claimed:
        assert claimed
        cells = DiskCache(Store(tmp_path), None).claimed({"ab" * 32: (0, 0)}, threading.Event())
        assert list(islice(cells, 2)) == [None, None]
    assert list(cells) == [(0, 0)]


def test_a_target_that_changes_during_a_run_is_detected_before_its_cells_are_stored(tmp_path):
    class OtherTarget(Serial):
        """Returns cells of another target, as a machine with another version of its file does."""

        def run(self, work, spec, cells):
            for cell in cells:
                yield replace(work.compute(cell), key="0" * 64)

    with pytest.raises(StrangeCellError, match="the file of the target was changed"):
        run_spec(spec(), tmp_path, executor=OtherTarget())
    assert Store(tmp_path).keys() == []


@pytest.mark.slow
def test_processes_give_the_same_bytes_as_serial_and_do_not_write_to_standard_output(
    whole, tmp_path, capfd
):
    run_spec(spec(), tmp_path, executor=Processes(workers=2))
    assert content(tmp_path) == content(whole)
    printed, errors = capfd.readouterr()
    assert "a worker loads the target" not in printed
    assert "a worker loads the target" in errors


class DyingWorker:
    """A worker that computes in this process, and dies during some cells.

    Class attributes:
        dying: how often a worker dies during a cell.
        given: the batches that workers were given.
    """

    dying: ClassVar[dict[tuple[int, int], int]] = {}
    given: ClassVar[list[tuple[tuple[int, int], ...]]] = []

    def __init__(self):
        self.unfinished = ()

    def give(self, task):
        self.unfinished = task.cells
        self.given.append(task.cells)

    def result(self):
        cell, *others = self.unfinished
        if self.dying.get(cell, 0):
            self.dying[cell] -= 1
            raise EOFError
        self.unfinished = tuple(others)
        return PackedCell(str(cell), b"", b"", 1 / 64)

    def cause_of_death(self):
        return "SIGSEGV"

    def end(self):
        pass


CELLS = [(group, attack) for group in range(30) for attack in range(3)]
WORK = SimpleNamespace(remedies=())


@pytest.fixture
def dying(monkeypatch):
    """How often a worker dies, by cell."""
    monkeypatch.setattr(executor_module, "Worker", DyingWorker)
    monkeypatch.setattr(executor_module, "first_ready", lambda busy, timeout: None)
    monkeypatch.setattr(DyingWorker, "dying", {})
    monkeypatch.setattr(DyingWorker, "given", [])
    return DyingWorker.dying


@pytest.mark.parametrize("deaths", [{}, {1: 1}, {0: 2}, {3: 1, 4: 1}, {24: 2, 25: 2, 1: 1}, {8: 2}])
def test_no_cell_is_lost_when_workers_die(dying, deaths):
    dying.update({CELLS[k]: times for k, times in deaths.items()})
    results = list(Processes(workers=3).run(WORK, "spec", CELLS))
    assert sorted(one.key for one in results) == sorted(map(str, CELLS))


def test_a_cell_that_kills_its_worker_too_often_fails_and_the_others_are_computed(dying):
    dying[CELLS[50]] = 99
    results = list(Processes(workers=2).run(WORK, "spec", CELLS))
    failed = [one for one in results if isinstance(one, FailedCell)]
    assert [(one.cell, one.reason) for one in failed] == [
        (CELLS[50], "its worker process died 3 times (SIGSEGV)")
    ]
    assert len(results) == 90


def test_short_cells_are_given_several_at_a_time_once_their_time_is_known(dying):
    list(Processes(workers=1).run(WORK, "spec", CELLS))
    sizes = [len(batch) for batch in DyingWorker.given]
    assert sizes == [1, 1, 1, 32, 32, 23]  # 32 cells of 1/64 s take 0.5 s
    assert DyingWorker.given[0] == (CELLS[0],)


def test_cells_of_unknown_length_are_given_alone(dying):
    measured = [(0, attack) for attack in range(20)]
    list(Processes(workers=1).run(WORK, "spec", measured))
    assert [len(batch) for batch in DyingWorker.given] == [1] * 20


@pytest.mark.parametrize("executor", [Processes(workers=2), Serial()])
def test_results_arrive_while_another_process_computes_the_other_cells(
    dying, monkeypatch, executor
):
    """The other process may itself wait for a cell of this one."""
    monkeypatch.setattr(
        executor_module, "result_of", lambda work, cell: PackedCell(str(cell), b"", b"", 0.01)
    )
    arrived = []

    def cells():
        yield CELLS[0]
        for _ in range(3):
            yield None
        assert arrived == [str(CELLS[0])]
        yield CELLS[1]

    for result in executor.run(WORK, "spec", cells()):
        arrived.append(result.key)
    assert arrived == [str(CELLS[0]), str(CELLS[1])]


def test_an_interrupt_stops_after_the_current_cell_and_explains_how_to_continue(tmp_path):
    class Interrupting(Serial):
        def run(self, work, spec, cells):
            for k, packed in enumerate(super().run(work, spec, cells)):
                if k == 2:
                    signal.raise_signal(signal.SIGINT)
                yield packed

    with pytest.raises(Interrupted, match="3 of 40 cells of this step are finished and kept"):
        run_spec(spec(), tmp_path, executor=Interrupting())
    assert len(Store(tmp_path).keys()) == 3
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_model_in_memory_resumes_and_other_weights_get_other_cells(tmp_path):
    work = load(spec())
    net = work.plan.job.defense.net
    x = work.plan.job.x
    y = work.plan.job.y
    first = sp.audit(
        net, x, y, threat=sp.Linf(0.05), budget="quick", out=tmp_path, allow_unusual=True
    )
    cells = Store(tmp_path).keys()
    again = sp.audit(
        net, x, y, threat=sp.Linf(0.05), budget="quick", out=tmp_path, allow_unusual=True
    )
    assert Store(tmp_path).keys() == cells
    assert again.robust_accuracy == first.robust_accuracy
    with torch.no_grad():
        net.layer.weight.mul_(-1)
    sp.audit(net, x, y, threat=sp.Linf(0.05), budget="quick", out=tmp_path, allow_unusual=True)
    assert len(Store(tmp_path).keys()) == 2 * len(cells)


def test_the_batch_is_halved_when_memory_runs_out_and_a_symptom_reports_it(tmp_path):
    result = run_spec(spec("hungry", n=80), tmp_path, executor=Serial())
    assert result.n == 80
    assert any(s.name == "memory" and "parts" in s.message for s in result.symptoms)


def test_the_audit_records_for_every_image_the_attack_that_broke_it(whole):
    result = sp.Audit.load(whole)
    examples = result.examples
    assert (examples.margin > 0).equal(result.correct == 0)
    assert examples.verified.all()
    assert set(examples.winner) <= {"clean", *(a.name for a in ATTACKS)}
    assert (examples.size <= 0.05 + 1e-6).all()
    broken_by = [w for w, c in zip(examples.winner, result.correct, strict=True) if c == 0]
    assert broken_by


def test_the_run_records_arguments_as_passed_and_with_defaults(whole):
    run = json.loads((whole / "run.json").read_text())
    assert "seed" not in run["passed"]
    assert run["spec"]["seed"] == 0
    assert run["schema"] == 2
    assert run["versions"]["torch"] == torch.__version__
    assert len(run["cells"]) == 40


def test_a_lock_is_released_when_its_process_is_killed(tmp_path):
    store = Store(tmp_path)
    process = FORK.Process(target=hold, args=(tmp_path,))
    process.start()
    while not (tmp_path / "held").exists():
        time.sleep(0.01)
    with store.claim("cell") as claimed:
        assert not claimed
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    with store.claim("cell") as claimed:
        assert claimed


def hold(folder):
    with Store(folder).claim("cell"):
        (folder / "held").touch()
        threading.Event().wait()


def test_keys_of_cells_depend_on_seed_threat_data_and_target():
    base = load(spec()).keys.values()
    others = [
        spec().model_copy(update={"seed": 1}),
        spec().model_copy(update={"threat": spec().threat.model_copy(update={"radius": "0.06"})}),
        spec(n=36),
        spec("hungry"),
    ]
    for other in others:
        assert not set(base) & set(load(other).keys.values())


def test_explicit_defaults_do_not_change_the_keys_of_cells():
    explicit = spec().model_validate(spec().model_dump())
    assert set(load(spec()).keys.values()) == set(load(explicit).keys.values())
