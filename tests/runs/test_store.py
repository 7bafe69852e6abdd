"""Runs survive: kills, damage, full disks, company."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import shutil
import signal
import threading
import time
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tests.runs.runs import ATTACKS, content, spec

import saddlepoint as sp
from saddlepoint.runs import executors as executor_module
from saddlepoint.runs import store as store_module
from saddlepoint.runs.cache import Interrupted, StrangeCellError
from saddlepoint.runs.executors import Processes, Serial
from saddlepoint.runs.runner import run_spec
from saddlepoint.runs.store import Store, StoreError
from saddlepoint.runs.work import load

FORK = multiprocessing.get_context(
    "forkserver"
)  # children start at once: the server has torch loaded
FORK.set_forkserver_preload(["saddlepoint.runs.runner"])


class Counting(Serial):
    """The serial executor, with a list of what it computed."""

    def __init__(self):
        object.__setattr__(self, "computed", [])

    def run(self, work, spec, cells):
        for packed in super().run(work, spec, cells):
            self.computed.append(packed.key)
            yield packed


def computed(spec, out) -> int:
    executor = Counting()
    run_spec(spec, out, executor=executor)
    return len(executor.computed)


def child(spec, out):
    os.environ["OMP_NUM_THREADS"] = "1"
    run_spec(spec, out, executor=Serial())


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """The run, uninterrupted."""
    out = tmp_path_factory.mktemp("whole") / "run"
    run_spec(spec(), out, executor=Serial())
    return out


def test_a_run_has_the_cells_it_should_have(whole):
    assert len(Store(whole).keys()) == 40


def test_killed_at_25_random_moments_and_resumed_the_store_is_that_of_an_uninterrupted_run(
    whole, tmp_path
):
    moments = np.random.default_rng(0).uniform(0.0, 0.25, 25)
    kills = 0
    for moment in moments:
        process = FORK.Process(target=child, args=(spec(), tmp_path / "run"))
        process.start()
        process.join(moment + 0.05)
        kills += process.is_alive()
        os.kill(process.pid, signal.SIGKILL) if process.is_alive() else None
        process.join()
    assert kills >= 10  # most moments must have hit a living run, or nothing was tested
    run_spec(spec(), tmp_path / "run", executor=Serial())
    assert content(tmp_path / "run") == content(whole)


def test_a_finished_run_is_not_computed_again(whole):
    assert computed(spec(), whole) == 0


def test_changing_one_attack_computes_its_cells_and_no_others(whole, tmp_path):
    whole = shutil.copytree(whole, tmp_path / "run")
    changed = (*ATTACKS[:4], ATTACKS[4].model_copy(update={"steps": 11}), *ATTACKS[5:])
    assert computed(spec(attacks=changed), whole) == 4
    assert computed(spec(), whole) == 0  # what the other attack left is still there


@pytest.mark.parametrize(
    "harm",
    ["truncated tensors", "flipped bit", "truncated record", "lost tensors", "edited record"],
)
def test_a_damaged_cell_is_found_by_its_hash_reported_and_computed_again(harm, tmp_path):
    run_spec(spec(), tmp_path, executor=Serial())
    before = content(tmp_path)
    kept = Store(tmp_path).keys()
    cells = tmp_path / "cells"
    key = next(key for key in kept if "apgd" in (cells / f"{key}.json").read_text())
    record = cells / f"{key}.json"
    tensors = cells / f"{key}.safetensors"
    data = bytearray(tensors.read_bytes())
    if harm == "truncated tensors":
        tensors.write_bytes(data[:-10])
    elif harm == "flipped bit":
        data[-3] ^= 1
        tensors.write_bytes(data)
    elif harm == "truncated record":
        record.write_bytes(record.read_bytes()[:40])
    elif harm == "lost tensors":
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


def test_a_full_disk_is_one_clear_error_and_loses_no_finished_cell(tmp_path, monkeypatch):
    real = os.fsync
    written = []

    def full(descriptor):
        written.append(descriptor)
        if len(written) > 30:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(store_module.os, "fsync", full)
    with pytest.raises(StoreError, match=r"full.*safe"):
        run_spec(spec(), tmp_path, executor=Serial())
    monkeypatch.undo()
    kept = Store(tmp_path).keys()
    assert len(kept) >= 5
    assert not [p for p in (tmp_path / "cells").iterdir() if p.name.startswith(".")]
    assert computed(spec(), tmp_path) == 40 - len(kept)


def test_two_processes_in_one_folder_share_the_work_and_agree(whole, tmp_path):
    pair = [FORK.Process(target=child, args=(spec(), tmp_path)) for _ in range(2)]
    for process in pair:
        process.start()
    for process in pair:
        process.join(60)
    assert [p.exitcode for p in pair] == [0, 0]
    assert content(tmp_path) == content(whole)
    events = [event["key"] for event in Store(tmp_path).events() if event["event"] == "cell"]
    assert sorted(events) == sorted(Store(tmp_path).keys())  # no cell was computed twice


def test_a_target_that_changes_under_a_run_is_found_out_before_its_cells_are_mixed(tmp_path):
    class Elsewhere(Serial):
        """Sees another target, as a machine with another version of the file would."""

        def run(self, work, spec, cells):
            for cell in cells:
                yield replace(work.compute(cell), key="0" * 64)

    with pytest.raises(StrangeCellError, match="the file of the target was changed"):
        run_spec(spec(), tmp_path, executor=Elsewhere())
    assert Store(tmp_path).keys() == []


def test_processes_give_the_same_bytes_as_serial_and_leave_standard_output_alone(
    whole, tmp_path, capfd
):
    run_spec(spec(), tmp_path, executor=Processes(workers=2))
    assert content(tmp_path) == content(whole)
    printed, aside = capfd.readouterr()
    assert "a worker loads the target" not in printed
    assert "a worker loads the target" in aside


class Brittle:
    """A pool that computes here and now, and breaks at the given submissions, or in the middle of a cell."""

    def __init__(self, when, dying):
        self.calls = 0
        self.when = when
        self.dying = dying

    def __call__(self, *args, **kwargs):
        return self

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return False

    def submit(self, compute, spec, cell, remedies):
        self.calls += 1
        if self.calls in self.when:
            raise BrokenProcessPool
        future = Future()
        if self.calls in self.dying:
            future.set_exception(BrokenProcessPool())
        else:
            future.set_result(cell)
        return future


@pytest.mark.parametrize(
    ("when", "dying"), [((2,), ()), ((1,), ()), ((4, 5), ()), ((5, 6), (2, 3)), ((3, 4), (2,))],
    ids=["second", "first", "twice", "again while handing out again", "with others at work"],
)  # fmt: skip
def test_no_cell_is_lost_when_the_pool_breaks_while_it_is_handed_one(monkeypatch, when, dying):
    monkeypatch.setattr(executor_module, "ProcessPoolExecutor", Brittle(set(when), set(dying)))
    cells = [(0, k) for k in range(9)]
    assert (
        sorted(Processes(workers=3, retries=4).run(SimpleNamespace(remedies=()), "spec", cells))
        == cells
    )


def test_a_pool_that_keeps_breaking_is_given_up(monkeypatch):
    monkeypatch.setattr(executor_module, "ProcessPoolExecutor", Brittle(set(range(2, 99)), set()))
    with pytest.raises(RuntimeError, match="died 3 times"):
        list(
            Processes(workers=1).run(
                SimpleNamespace(remedies=()), "spec", [(0, k) for k in range(9)]
            )
        )


def test_an_interrupt_stops_after_the_current_cell_and_says_how_to_go_on(tmp_path):
    class Impatient(Serial):
        def run(self, work, spec, cells):
            for k, packed in enumerate(super().run(work, spec, cells)):
                if k == 2:
                    signal.raise_signal(signal.SIGINT)
                yield packed

    with pytest.raises(Interrupted, match="3 of 40 cells are finished"):
        run_spec(spec(), tmp_path, executor=Impatient())
    assert len(Store(tmp_path).keys()) == 3
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_model_in_memory_resumes_too_and_another_model_is_not_mistaken_for_it(tmp_path):
    work = load(spec())
    net = work.plan.job.defense.net
    x = work.plan.job.x
    y = work.plan.job.y
    first = sp.audit(net, x, y, threat=sp.Linf(0.05), budget="quick", out=tmp_path)
    cells = Store(tmp_path).keys()
    again = sp.audit(net, x, y, threat=sp.Linf(0.05), budget="quick", out=tmp_path)
    assert Store(tmp_path).keys() == cells
    assert again.robust_accuracy == first.robust_accuracy
    with torch.no_grad():
        net.layer.weight.mul_(-1)
    sp.audit(net, x, y, threat=sp.Linf(0.05), budget="quick", out=tmp_path)
    assert len(Store(tmp_path).keys()) == 2 * len(cells)


def test_memory_that_runs_out_halves_the_batch_and_is_said(tmp_path):
    result = run_spec(spec("hungry", n=80), tmp_path, executor=Serial())
    assert result.n == 80
    assert any(s.name == "memory" and "parts" in s.message for s in result.symptoms)


def test_the_ledger_says_for_every_example_how_it_fell(whole):
    result = sp.Audit.load(whole)
    examples = result.examples
    assert (examples.margin > 0).equal(result.correct == 0)
    assert examples.verified.all()
    assert set(examples.winner) <= {"clean", *(a.name for a in ATTACKS)}
    assert (examples.size <= 0.05 + 1e-6).all()
    fallen = [w for w, c in zip(examples.winner, result.correct, strict=True) if c == 0]
    assert fallen


def test_the_run_records_arguments_as_passed_and_with_defaults(whole):
    run = json.loads((whole / "run.json").read_text())
    assert "seed" not in run["passed"]
    assert run["spec"]["seed"] == 0
    assert run["schema"] == 1
    assert len(run["cells"]) == 40


def test_a_lock_falls_with_the_process_that_held_it(tmp_path):
    store = Store(tmp_path)
    process = FORK.Process(target=hold, args=(tmp_path,))
    process.start()
    while not (tmp_path / "held").exists():
        time.sleep(0.01)
    with store.claim("cell") as ours:
        assert not ours
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    with store.claim("cell") as ours:
        assert ours


def hold(folder):
    with Store(folder).claim("cell"):
        (folder / "held").touch()
        threading.Event().wait()


def test_cells_depend_on_seed_threat_data_and_target():
    base = load(spec()).keys.values()
    others = [
        spec().model_copy(update={"seed": 1}),
        spec().model_copy(update={"threat": spec().threat.model_copy(update={"eps": "0.06"})}),
        spec(n=36),
        spec("hungry"),
    ]
    for other in others:
        assert not set(base) & set(load(other).keys.values())
    assert set(base) == set(load(replace_name(spec())).keys.values())


def replace_name(given):
    """The same work asked for with explicit defaults."""
    return given.model_validate(given.model_dump())
