"""One worker process that computes cells and ends with the process that started it."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType
from typing import Any

from saddlepoint.audits.planning.choice import Choice
from saddlepoint.locate import describe_error
from saddlepoint.runs.packed_cell import PackedCell
from saddlepoint.runs.work import Cell, FailedCell, Work, load_for, portable, result_of

_POLL = 1.0  # seconds between two checks that the parent process lives
_PATIENCE = 0.5  # seconds until an idle worker must have ended
_LOADING = 10  # timeouts until the target must be loaded and probed


@dataclass(frozen=True)
class Task:
    """Cells with everything that a worker needs to compute them."""

    spec: str  # the specification as JSON, so that no tensor of the target travels
    cells: tuple[Cell, ...]
    remedies: Sequence[Choice]
    folder: str  # where relative paths of the target start


class _Started:
    """Message: the target is loaded, and the computation of the next cell begins."""


@dataclass(frozen=True)
class _Raised:
    """Message: the computation ended with an error that is not one of the target."""

    error: Exception
    text: str  # its traceback


@contextmanager
def without_main_script() -> Iterator[None]:
    """Start new interpreters in this block without the script that this process runs.

    They would run a script without `if __name__ == "__main__"` again. Nothing in it is needed:
    what they call belongs to this package, and targets are loaded from files.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


class Worker:
    """A process that computes one cell after the other. It loads the target once.

    It ignores Ctrl-C and SIGTERM, because the parent process decides when to stop. It ends as
    soon as the parent process has ended, even if that was killed.
    """

    def __init__(self) -> None:
        with without_main_script():
            self._start(multiprocessing.get_context("spawn"), _serve_specification)

    def _start(self, context: Any, serve: Callable[[Connection], None]) -> None:
        """Start the process.

        Args:
            context: how the process is started: a context of `multiprocessing`.
            serve: runs in the process, with its end of the connection.
        """
        self.connection, other = context.Pipe()
        # Not a daemon: a target may start processes of its own.
        self._process: BaseProcess = context.Process(target=serve, args=(other,))
        self._process.start()
        other.close()
        self.unfinished: tuple[Cell, ...] = ()  # cells without a result; the first is the current
        self.given = 0.0  # when the worker got the current cell
        self.started: float | None = None  # when the computation of the current cell began

    @property
    def sentinel(self) -> int:
        """Becomes ready when the process has ended."""
        return self._process.sentinel

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid or 0

    def give(self, task: Task) -> None:
        """Give an idle worker cells to compute."""
        self._next(task.cells)
        try:
            write(self.connection, task)
        except BrokenPipeError:
            return  # it has died, which is found when its result is awaited

    def result(self) -> PackedCell | FailedCell | None:
        """The result of the current cell, which is then the next one; None while it is computed.

        Raises:
            EOFError: the process has died.
            Exception: what the computation raised, if that is a bug and no failure of the target.
        """
        while self.connection.poll():
            try:
                message = read(self.connection)
            except ConnectionResetError:
                raise EOFError from None
            if isinstance(message, _Started):
                self.started = time.monotonic()
                continue
            if isinstance(message, _Raised):
                self.unfinished = ()
                message.error.add_note(f"In a worker process:\n{message.text}")
                raise message.error
            self._next(self.unfinished[1:])
            done: PackedCell | FailedCell = message
            return done
        return None

    def _next(self, cells: tuple[Cell, ...]) -> None:
        self.unfinished = cells
        self.given = time.monotonic()
        self.started = None

    def seconds_left(self, timeout: float) -> float:
        """Until the current cell has taken longer than `timeout`.

        Loading and probing the target come before and may take ten times as long.
        """
        if self.started is None:
            return self.given + _LOADING * timeout - time.monotonic()
        return self.started + timeout - time.monotonic()

    def cause_of_death(self) -> str:
        """How the process ended, for a message."""
        self._process.join(_PATIENCE)
        code = self._process.exitcode
        if code is None or code >= 0:
            return f"exit code {code}"
        name = signal.Signals(-code).name
        hints = {"SIGKILL": ", perhaps because memory ran out", "SIGSEGV": ", an invalid address"}
        return f"{name}{hints.get(name, '')}"

    def end(self) -> None:
        """End the process: an idle one by itself, a busy one at once."""
        self.connection.close()
        if not self.unfinished:
            self._process.join(_PATIENCE)
        self._process.kill()
        self._process.join()
        self._process.close()


def first_ready(workers: Sequence[Worker], timeout: float | None) -> None:
    """Wait until one of the workers has a message or dies, at most `timeout` seconds."""
    places: list[Connection | int] = []
    for worker in workers:
        places += [worker.connection, worker.sentinel]
    wait(places, timeout)


def write(connection: Connection, message: object) -> None:
    """Write a message as bytes.

    `Connection.send` would share the memory of tensors with the other process instead, through a
    thread that prints a traceback if that process is killed.
    """
    connection.send_bytes(pickle.dumps(message))


def read(connection: Connection) -> Any:
    """Read a message."""
    return pickle.loads(connection.recv_bytes())


def _serve_specification(connection: Connection) -> None:
    """Load the target of each task, which is kept in memory, and compute its cells."""
    begin_worker()
    serve(connection, lambda task: load_for(task.spec, task.cells, task.remedies))


def begin_worker() -> None:
    """Prepare this process: the parent decides when to stop, and only it writes results."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.stdout = sys.stderr  # standard output is for results of the parent process
    os.dup2(2, 1)  # also for code that writes to the file descriptor
    threading.Thread(target=end_with_parent, daemon=True).start()


def serve(connection: Connection, work_of: Callable[[Task], Work]) -> None:
    """Compute the cells of all tasks until the parent closes the connection.

    Args:
        connection: to the parent process.
        work_of: the work of a task.
    """
    while True:
        try:
            task = read(connection)
        except (EOFError, OSError):
            return
        try:
            _compute(task, connection, work_of)
        except Exception as error:
            write(connection, _raised(error))


def _compute(task: Task, connection: Connection, work_of: Callable[[Task], Work]) -> None:
    """Compute the cells of a task and write each result as soon as it is there."""
    if Path(task.folder).is_dir():
        os.chdir(task.folder)
    work = work_of(task)
    for cell in task.cells:
        write(connection, _Started())
        write(connection, portable(result_of(work, cell)))


def _raised(error: Exception) -> _Raised:
    text = traceback.format_exc()
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # an exception class of the target may have any constructor
        return _Raised(RuntimeError(describe_error(error)), text)
    return _Raised(error, text)


def end_with_parent() -> None:
    """End this process when the parent process has ended.

    The sentinel is a pipe that the operating system closes with the parent. A process that the
    parent has forked may keep it open, so the parent's number is checked as well.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None, "a worker has a parent"
    number = os.getppid()
    while not wait([parent.sentinel], _POLL) and os.getppid() == number:
        pass
    os._exit(1)
