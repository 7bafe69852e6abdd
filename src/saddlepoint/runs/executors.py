"""Executors compute cells: in this process, in several processes, or on a cluster (`ray.py`)."""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from saddlepoint.phrases import how_often
from saddlepoint.runs.batches import POLL, Batches
from saddlepoint.runs.eta import duration
from saddlepoint.runs.packed_cell import PackedCell
from saddlepoint.runs.work import Cell, FailedCell, Work, result_of
from saddlepoint.runs.workers import Task, Worker, first_ready

Result = PackedCell | FailedCell


class Executor(Protocol):
    """Computes cells, and takes the next ones only when a worker is free."""

    def run(self, work: Work, spec: str | None, cells: Iterable[Cell | None]) -> Iterator[Result]:
        """The results of cells, in any order. A cell that the target breaks is a `FailedCell`.

        Args:
            work: the plan and the target.
            spec: the specification as JSON, from which other processes load the target.
            cells: the cells; None means that other processes compute all that are left, and that
                the next one should be taken later.
        """

    def close(self) -> None:
        """Stop all workers at once. The executor can be used again."""


class Serial:
    """Computes one cell after the other in this process."""

    def run(
        self,
        work: Work,
        spec: str | None,  # noqa: ARG002
        cells: Iterable[Cell | None],
    ) -> Iterator[Result]:
        """The results of cells, in order."""
        for cell in cells:
            if cell is None:
                time.sleep(POLL)
            else:
                yield result_of(work, cell)

    def close(self) -> None:
        """Nothing to stop."""


class Processes:
    """Computes cells in several processes, each of which loads the target once.

    The processes are kept between the stages of an audit. If a worker dies, it is replaced and its
    cell is computed again. Short cells are given to a worker several at a time.

    Args:
        workers: number of processes; default: one per core.
        retries: how often a cell is computed again after its worker died.
        timeout: seconds after which a cell has failed; default: it may take forever.
        batch_seconds: how long the short cells that a worker gets at a time take together.
    """

    def __init__(
        self,
        workers: int | None = None,
        retries: int = 2,
        timeout: float | None = None,
        batch_seconds: float = 0.5,
    ) -> None:
        self.workers = workers
        self.retries = retries
        self.timeout = timeout
        self.batch_seconds = batch_seconds
        self._pool: list[Worker] = []

    @property
    def count(self) -> int:
        """The number of processes."""
        return self.workers or os.cpu_count() or 1

    def run(self, work: Work, spec: str | None, cells: Iterable[Cell | None]) -> Iterator[Result]:
        """The results of cells, in the order in which they finish."""
        yield from self._run(work, needs_spec(spec), cells)

    def _run(self, work: Work, spec: str, cells: Iterable[Cell | None]) -> Iterator[Result]:
        batches = Batches(cells, self.batch_seconds)
        folder = str(Path.cwd())
        while True:
            while (worker := self._idle()) and (batch := batches.next()):
                yield from self._give(worker, Task(spec, batch, work.remedies, folder), work)
            busy = [worker for worker in self._pool if worker.unfinished]
            if busy:
                first_ready(busy, self._seconds(busy, blocked=batches.blocked))
            elif batches.blocked:
                time.sleep(POLL)
            else:
                return
            for worker in busy:
                yield from self._results(worker, batches)

    def close(self) -> None:
        """Stop all workers at once."""
        while self._pool:
            self._pool.pop().end()
        atexit.unregister(self.close)

    def _idle(self) -> Worker | None:
        """A worker without a cell, a new one if there may be more; None if all are busy."""
        for worker in self._pool:
            if not worker.unfinished:
                return worker
        return self._add() if len(self._pool) < self.count else None

    def _add(self) -> Worker:
        """Start a worker."""
        if not self._pool:
            atexit.register(self.close)
        self._pool.append(self._new_worker())
        return self._pool[-1]

    def _new_worker(self) -> Worker:
        return Worker()

    def _give(self, worker: Worker, task: Task, work: Work) -> Iterator[Result]:  # noqa: ARG002
        """Give a task to a worker; returns the results of cells that are not computed there."""
        worker.give(task)
        return iter(())

    def _seconds(self, busy: Sequence[Worker], *, blocked: bool) -> float | None:
        """How long to wait for a result."""
        limits = [worker.seconds_left(self.timeout) for worker in busy] if self.timeout else []
        if blocked:
            limits.append(POLL)
        return max(min(limits), 0.0) if limits else None

    def _results(self, worker: Worker, batches: Batches) -> Iterator[Result]:
        """What a worker has computed since the last call, or why it could not."""
        while worker.unfinished:
            cell = worker.unfinished[0]
            try:
                result = worker.result()
            except EOFError:
                yield from self._died(worker, batches)
                return
            if result is None:
                break
            if isinstance(result, PackedCell):
                batches.finished(cell, result.seconds)
            yield self._received(result)
        if self.timeout and worker.unfinished and worker.seconds_left(self.timeout) <= 0:
            late, *others = worker.unfinished
            self._discard(worker)
            batches.restore(others)
            yield FailedCell(late, f"it took longer than {duration(self.timeout)} (--timeout)")

    def _received(self, result: Result) -> Result:
        """The result that a worker returned."""
        return result

    def _died(self, worker: Worker, batches: Batches) -> Iterator[FailedCell]:
        cause = worker.cause_of_death()
        cell, *others = worker.unfinished
        self._discard(worker)
        times = batches.died(cell)
        failed = times > self.retries
        batches.restore(others if failed else [cell, *others])
        if failed:
            yield FailedCell(cell, f"its worker process died {how_often(times)} ({cause})")

    def _discard(self, worker: Worker) -> None:
        self._pool.remove(worker)
        worker.end()


def needs_spec(spec: str | None) -> str:
    """The specification, or a ValueError: other processes load the target from it."""
    if spec is None:
        raise ValueError(
            "this executor needs a target that a worker can load: 'zoo:NAME', 'file.py:factory' "
            "or 'package.module:factory'. A model in memory is audited by the serial executor."
        )
    return spec
