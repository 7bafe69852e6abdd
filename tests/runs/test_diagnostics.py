"""Diagnostics are cells: they run on workers, are stored, and resume after a kill."""

from __future__ import annotations

import multiprocessing
import signal

import pytest
from tests.runs.logged_target import LoggedTarget
from tests.runs.runs import CountingExecutor, content, record_without_times

from saddlepoint.audits.profile import Stage
from saddlepoint.runs.executors import Processes, Serial
from saddlepoint.runs.store import Store
from saddlepoint.runs.work import load

FORK = multiprocessing.get_context("forkserver")
FORK.set_forkserver_preload(["saddlepoint.runs.runner"])


@pytest.fixture
def target(tmp_path):
    load.cache_clear()
    return LoggedTarget.write(tmp_path)


@pytest.fixture(scope="module")
def on_workers(tmp_path_factory):
    """A target that was audited by two worker processes."""
    load.cache_clear()
    target = LoggedTarget.write(tmp_path_factory.mktemp("workers"))
    target.audit(Processes(workers=2))
    return target


def test_attacks_and_diagnostics_run_on_worker_processes_only(on_workers):
    target = on_workers
    assert set(target.pids[: target.calls_at[Stage.ATTACK]]) == {target.driver}
    assert target.driver not in target.pids_after_the_plan
    assert len(target.pids_after_the_plan) == 2


@pytest.mark.slow
def test_diagnostics_alone_run_on_worker_processes(target):
    """Attack cells are there already, so that all calls are those of diagnostics."""
    target.audit(Serial())
    diagnostics = Store(target.run / "diagnostics")
    for key in diagnostics.keys():  # noqa: SIM118
        diagnostics.discard(key)
    again = LoggedTarget(target.folder)
    again.audit(Processes(workers=2))
    assert again.driver not in again.pids_after_the_plan
    assert len(again.pids_after_the_plan) == 2


def test_processes_and_serial_give_the_same_bytes_of_all_cells(on_workers):
    serial = LoggedTarget(on_workers.folder, out="serial")
    serial.audit(Serial())
    assert content(on_workers.run) == content(serial.run)
    assert any(name.startswith("diagnostics") for name in content(serial.run))
    assert record_without_times(on_workers.run) == record_without_times(serial.run)


def audit_in_child(target):
    target.audit(Serial())


def test_a_diagnosis_that_is_killed_resumes(target):
    whole = LoggedTarget(target.folder, out="whole")
    executor = CountingExecutor()
    whole.audit(executor)
    # The same process again, killed in the middle of the diagnose stage.
    first = whole.calls_at[Stage.DIAGNOSE]
    last = whole.calls_at[Stage.CONCLUDE]
    target.reset()
    target.kill_at((first + last) // 2)
    process = FORK.Process(target=audit_in_child, args=(target,))
    process.start()
    process.join(120)
    assert process.exitcode == -signal.SIGKILL
    finished = set(Store(target.run / "diagnostics").keys())
    assert set(Store(target.run).keys()) == set(executor.attacks)
    assert 1 <= len(finished) < len(executor.measurements)
    resumed = CountingExecutor()
    target.audit(resumed)
    assert resumed.attacks == []
    assert set(resumed.measurements) == set(executor.measurements) - finished
    assert content(target.run) == content(whole.run)
    assert record_without_times(target.run) == record_without_times(whole.run)
