"""Worker processes end with their parent, and signals stop a run as they should."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import time
from multiprocessing import resource_sharer
from pathlib import Path

import pytest
import torch
from tests.cli.commands import START, TARGETS

from saddlepoint.runs.pool import process_pool
from saddlepoint.runs.store import Store
from saddlepoint.runs.workers import Task, Worker

WORDS = ["audit", f"{TARGETS}:slow", "--budget", "quick", "--n", "20", "--eps", "0.05"]


def start(*words: str) -> subprocess.Popen:
    """Run `saddlepoint` with these words, in a process of its own."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", START, *WORDS, "--batch-size", "2", "--out", "run", *words]
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment)


def wait_for_cells(
    process: subprocess.Popen, count: int, ledger: Path = Path("run/ledger.jsonl")
) -> None:
    deadline = time.monotonic() + 200
    while not (ledger.is_file() and ledger.read_text().count('"cell"') >= count):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(number) for number in text.split()]


def is_running(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


def ended(pids: list[int], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not any(map(is_running, pids)):
            return True
        time.sleep(0.05)
    return False


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_tensors_travel_to_a_worker_as_bytes():
    """Shared memory would need a thread that fails if the worker is killed."""
    here, there = multiprocessing.Pipe()
    worker = Worker.__new__(Worker)
    worker.connection = here
    task = Task("{}", (torch.ones(3),), (), ".")
    worker.give(task)
    assert resource_sharer._resource_sharer._listener is None
    assert torch.equal(pickle.loads(there.recv_bytes()).cells[0], torch.ones(3))


needs_proc = pytest.mark.skipif(not Path("/proc").is_dir(), reason="reads /proc")


WORKERS = pytest.mark.parametrize(
    "workers",
    [("--workers", "2"), ("--executor", "processes", "--workers", "1")],
    ids=["copies", "new processes"],
)


@pytest.mark.slow
@needs_proc
@WORKERS
def test_workers_end_with_a_parent_that_is_killed(workers):
    process = start(*workers)
    wait_for_cells(process, 2)
    pids = children(process.pid)
    assert pids
    process.kill()
    process.wait()  # `communicate` would wait for the workers, which hold its pipes
    have_ended = ended(pids, 10)
    process.communicate()
    assert have_ended


@pytest.mark.slow
@needs_proc
@WORKERS
def test_sigterm_stops_after_the_current_cell_and_a_second_one_at_once(workers):
    process = start(*workers)
    wait_for_cells(process, 2)
    pids = children(process.pid)
    process.send_signal(signal.SIGTERM)
    time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    sent = time.monotonic()
    _, messages = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in messages
    assert messages.splitlines()[-1].startswith(("Interrupted.", "stopped: "))
    assert ended(pids, 10)
    assert time.monotonic() - sent < 20  # one second on an idle machine
    assert 2 <= len(Store(Path("run")).keys()) < 30


def test_an_interruption_kills_the_processes_of_a_pool_in_the_middle_of_a_call():
    def interrupted() -> None:
        with process_pool(1) as pool:
            pids.append(pool.submit(os.getpid).result())
            pool.submit(time.sleep, 600)
            raise KeyboardInterrupt

    pids: list[int] = []
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert time.monotonic() - started < 300
    assert pids[0] not in [child.pid for child in multiprocessing.active_children()]


@pytest.mark.slow
@needs_proc
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one core: no other process is started")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_processes_of_the_demo_end_with_it(number):
    words = ["demo", "--out", "run", "--model", "purifier", "--model", "random"]
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-c", START, *words], stderr=pipe, text=True)
    wait_for_cells(process, 1, Path("run/random/ledger.jsonl"))
    pids = children(process.pid)
    assert len(pids) >= 2
    process.send_signal(number)
    _, messages = process.communicate(timeout=20)  # an evaluation takes a minute
    assert ended(pids, 20)  # a second or two on an idle machine
    if number == signal.SIGTERM:
        assert process.returncode == 130
        assert messages == "Interrupted.\n"
