"""An audit uses all cores by default, and has the bytes of one process."""

from __future__ import annotations

import multiprocessing
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.runs.runs import content, record_without_times
from torch import nn

import saddlepoint as sp
from saddlepoint.audits import AuditRequest, prepare
from saddlepoint.audits.profile import Spent, Stage
from saddlepoint.passes import PassCount
from saddlepoint.runs import automatic, cores, forked
from saddlepoint.runs.automatic import Automatic
from saddlepoint.runs.execution import _longest_first
from saddlepoint.runs.executors import Processes, Serial
from saddlepoint.runs.forked import Forked
from saddlepoint.runs.locks import claim, close_inherited_locks, is_locked
from saddlepoint.runs.work import Work

THREAT = sp.Linf(0.1)
linux = pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs Linux")


def images(n=8):
    generator = torch.Generator().manual_seed(0)
    return torch.rand(n, 1, 4, 4, generator=generator)


def linear_net():
    """A net in a closure, which no other process could load or unpickle."""
    torch.manual_seed(0)
    inner = nn.Linear(16, 3)

    class Hidden(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = inner
            self.scale = lambda z: 2 * z

        def forward(self, x):
            return self.scale(self.inner(x.flatten(1)))

    return Hidden()


def labels(net, x):
    return net(x).argmax(1).detach()


def audited(net, workers, out=None):
    x = images()
    # Diagnostics of this attack cannot be pickled for another process.
    attack = sp.Direct("closure", sp.PGD(3), loss=lambda logits, y: -logits[:, 0] + 0 * y)
    return sp.audit(
        net,
        x,
        labels(linear_net(), x),
        threat=THREAT,
        budget="quick",
        adversaries=[attack],
        batch_size=4,
        workers=workers,
        out=out,
    )


def work_of(target, **options):
    x = images()
    y = labels(linear_net(), x)
    request = AuditRequest(target, x, y, sp.Threat(THREAT), budget="quick", **options)
    return Work.of(prepare(request), threads=1)


@linux
def test_several_processes_give_the_bytes_of_one(tmp_path, monkeypatch):
    started = []
    add = Forked._add
    monkeypatch.setattr(Forked, "_add", lambda self: started.append(add(self)) or started[-1])
    two = audited(linear_net(), 2, tmp_path / "two")
    assert len(started) == 2
    one = audited(linear_net(), 1, tmp_path / "one")
    assert len(started) == 2
    assert content(tmp_path / "two") == content(tmp_path / "one")
    assert record_without_times(tmp_path / "two") == record_without_times(tmp_path / "one")
    assert one.robust_accuracy == two.robust_accuracy


class OnlyHere(nn.Module):
    """Does something else in a copy of the process that made it."""

    act = staticmethod(lambda logits: logits)

    def __init__(self):
        super().__init__()
        self.net = linear_net()
        self.own = os.getpid()

    def forward(self, x):
        return self.net(x) if os.getpid() == self.own else OnlyHere.act(self.net(x))


@pytest.fixture(scope="module")
def work():
    return work_of(OnlyHere(), batch_size=2)


def _raise(_logits):
    raise OSError("no connection")


@linux
@pytest.mark.parametrize(
    ("act", "reason"),
    [
        (_raise, "the target raised OSError: no connection"),
        (lambda logits: logits + 1, "the target has other outputs in a copy"),
        (lambda logits: os._exit(3), "a copy of this process ended when it ran the target"),
        (lambda logits: time.sleep(600), "the target does not return in a copy"),
    ],
    ids=["raises", "differs", "exits", "hangs"],
)
def test_a_target_that_fails_in_a_copy_is_run_by_one_process(work, monkeypatch, act, reason):
    monkeypatch.setattr(
        forked, "_TRIAL_SECONDS", 1.0 if reason.endswith("return in a copy") else 60
    )
    monkeypatch.setattr(forked, "_TRIAL_FACTOR", 0)
    monkeypatch.setattr(OnlyHere, "act", staticmethod(act))
    notes = []
    executor = Forked(2, notes.append)
    results = list(executor.run(work, None, work.plan.cells))
    assert [result.key for result in results] == list(work.keys.values())
    list(executor.run(work, None, work.plan.cells[:1]))
    assert len(notes) == 1
    assert notes[0].startswith(f"The audit runs in one process: {reason}")
    assert not multiprocessing.active_children()


class Fails(nn.Module):
    """Raises an error for perturbed images."""

    def __init__(self):
        super().__init__()
        self.net = linear_net()
        self.pixels = images().flatten(1)

    def forward(self, x):
        distances = torch.cdist(x.flatten(1), self.pixels).min(1).values
        if len(x) == 4 and distances.min() > 0.05:
            raise ZeroDivisionError("a bug of the target")
        return self.net(x)


@linux
def test_an_error_of_the_target_is_the_one_that_it_raised():
    with pytest.raises(ZeroDivisionError, match="a bug of the target"):
        audited(Fails(), 2)
    assert not multiprocessing.active_children()


@pytest.fixture
def free(monkeypatch):
    """Four cores for this process alone, and an audit that takes a minute."""
    monkeypatch.setattr(automatic, "available_cores", lambda: 4)
    monkeypatch.setattr(automatic, "inside_other_workers", lambda: False)
    monkeypatch.setattr(automatic, "expected_seconds", lambda plan: 60.0)


def chosen(work, workers=None, *, has_spec=False):
    notes = []
    executor = Automatic(workers).choose(work, notes.append, has_spec=has_spec)
    return executor, notes


@linux
@pytest.mark.usefixtures("free")
def test_a_long_audit_uses_all_cores(work, monkeypatch):
    executor, notes = chosen(work)
    assert isinstance(executor, Forked)
    assert executor.count == 4
    assert not notes
    monkeypatch.setattr(automatic, "processes_in_memory", lambda: 3)
    assert chosen(work)[0].count == 3
    assert isinstance(chosen(work, workers=1)[0], Serial)


@linux
@pytest.mark.usefixtures("free")
def test_a_short_audit_runs_in_one_process_without_a_note(work, monkeypatch):
    monkeypatch.setattr(automatic, "expected_seconds", lambda plan: 1.0)
    executor, notes = chosen(work)
    assert isinstance(executor, Serial)
    assert not notes
    assert isinstance(chosen(work, workers=2)[0], Forked)


@pytest.mark.usefixtures("free")
def test_inside_of_other_workers_there_is_one_process(work, monkeypatch):
    monkeypatch.setattr(automatic, "inside_other_workers", lambda: True)
    assert isinstance(chosen(work, has_spec=True)[0], Serial)


@linux
@pytest.mark.usefixtures("free")
def test_a_callable_is_run_in_one_process_with_a_note_or_loaded_by_new_ones():
    net = linear_net()
    work = work_of(lambda x: net(x).detach())
    executor, notes = chosen(work)
    assert isinstance(executor, Serial)
    assert notes == [
        "The audit runs in one process: the target is a callable, which may have threads or "
        "connections of its own."
    ]
    assert isinstance(chosen(work, has_spec=True)[0], Processes)


@linux
@pytest.mark.usefixtures("free")
def test_several_threads_per_cell_are_not_copied(work, monkeypatch):
    monkeypatch.setattr(automatic, "available_cores", lambda: 8)
    executor, notes = chosen(replace(work, threads=4))
    assert isinstance(executor, Serial)
    assert notes == ["The audit runs in one process: each cell uses 4 threads."]


def test_cores_are_limited_by_threads_of_torch_and_by_the_container(tmp_path):
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        assert cores.available_cores() == 1
    finally:
        torch.set_num_threads(before)
    limits = tmp_path / "cpu.max"
    assert cores._container_limit(8, limits) == 8
    limits.write_text("max 100000\n")
    assert cores._container_limit(8, limits) == 8
    limits.write_text("250000 100000\n")
    assert cores._container_limit(8, limits) == 2
    limits.write_text("50000 100000\n")
    assert cores._container_limit(8, limits) == 1


def test_memory_of_the_container_limits_processes(tmp_path):
    assert cores._container_memory(tmp_path) > 2**60
    (tmp_path / "memory.max").write_text("3000\n")
    (tmp_path / "memory.current").write_text("1000\n")
    assert cores._container_memory(tmp_path) == 2000


def test_other_workers_are_recognized(monkeypatch):
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    assert not cores.inside_other_workers()
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw0")
    assert cores.inside_other_workers()
    monkeypatch.delenv("PYTEST_XDIST_WORKER")
    loader = torch.utils.data.DataLoader(_Nested(), num_workers=1, batch_size=None)
    assert [bool(value) for value in loader] == [True]


class _Nested(torch.utils.data.Dataset):
    """One item: whether the process that loads it is one of several."""

    def __len__(self):
        return 1

    def __getitem__(self, k):
        return torch.tensor(cores.inside_other_workers())


def test_the_expected_time_follows_from_passes_and_images(work):
    plan = work.plan
    slow = replace(plan, preparation={Stage.PROBE: Spent(1.0, PassCount(10, 0))})
    fast = replace(plan, preparation={Stage.PROBE: Spent(1e-6, PassCount(10, 0))})
    passes = sum(choice.adversary.first_stage_cost(1).total for choice in plan.choices)
    assert cores.expected_seconds(fast) == pytest.approx(8 * passes * 1e-7)
    assert 0 < cores.expected_seconds(slow) < 8 * passes * 0.1


def test_threads_of_a_model_in_memory_follow_from_cells_and_cores(work, monkeypatch):
    monkeypatch.setattr(cores, "inside_other_workers", lambda: False)
    monkeypatch.setattr(cores, "why_not_copied", lambda job: "")
    plan = work.plan
    attacks = 4 * len(plan.choices)
    monkeypatch.setattr(cores, "_ENOUGH_CELLS", attacks + 1)
    for count, threads in ((1, 1), (attacks, 1), (attacks + 1, None)):
        monkeypatch.setattr(cores, "available_cores", lambda count=count: count)
        assert cores.default_threads(plan) == threads
    monkeypatch.setattr(cores, "available_cores", lambda: 1)
    monkeypatch.setattr(cores, "inside_other_workers", lambda: True)
    assert cores.default_threads(plan) is None


def test_workers_get_the_longest_cells_first_after_the_clean_images():
    attacks = tuple(sp.Direct(f"pgd-{k}", sp.PGD(k)) for k in (3, 9, 5))
    work = work_of(linear_net(), adversaries=attacks, batch_size=4)
    ordered = _longest_first(work.plan, {key: cell for cell, key in work.keys.items()})
    assert [number for _, number in ordered.values()] == [0, 0, 2, 2, 3, 3, 1, 1]


@linux
def test_a_copy_does_not_hold_the_locks_of_its_parent(tmp_path):
    lock = tmp_path / "locks" / "cell"
    fork = multiprocessing.get_context("fork")
    here, there = fork.Pipe()

    def wait():
        close_inherited_locks()
        there.send("closed")
        there.recv()

    with claim(lock) as taken:
        assert taken
        process = fork.Process(target=wait)
        process.start()
        assert here.recv() == "closed"
        assert is_locked(lock)
    assert not is_locked(lock)
    here.send("end")
    process.join()


@pytest.mark.parametrize(("workers", "threads"), [(0, None), (None, 0)])
def test_no_worker_and_no_thread_are_errors(workers, threads):
    with pytest.raises(ValueError, match="at least one of its"):
        sp.audit(linear_net(), images(), [0] * 8, workers=workers, threads=threads)
