"""Executors compute cells: in this process, in several processes, or on a cluster (`ray.py`)."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Protocol

from saddlepoint.phrases import how_often
from saddlepoint.runs.store import PackedCell
from saddlepoint.runs.work import Cell, Work, compute


class Executor(Protocol):
    """Computes cells, and takes the next one only when a worker is free."""

    def run(self, work: Work, spec: str | None, cells: Iterable[Cell]) -> Iterator[PackedCell]:
        """The results of cells, in any order.

        Args:
            work: the plan and the target.
            spec: the specification as JSON, from which other processes load the target.
            cells: the cells.
        """

    def close(self) -> None:
        """Stop all workers. The executor can be used again."""


class Serial:
    """Computes one cell after the other in this process."""

    def run(
        self,
        work: Work,
        spec: str | None,  # noqa: ARG002
        cells: Iterable[Cell],
    ) -> Iterator[PackedCell]:
        """The results of cells, in order."""
        for cell in cells:
            yield work.compute(cell)

    def close(self) -> None:
        """Nothing to stop."""


class Processes:
    """Computes cells in several processes, each of which loads the target once.

    The processes are kept between the stages of an audit. If a worker dies, its cell is computed
    again.

    Args:
        workers: number of processes; default: one per core.
        retries: how often dead workers are replaced before the run fails.
    """

    def __init__(self, workers: int | None = None, retries: int = 2) -> None:
        self.workers = workers
        self.retries = retries
        self._pool: ProcessPoolExecutor | None = None

    @property
    def count(self) -> int:
        """The number of processes."""
        return self.workers or os.cpu_count() or 1

    def run(self, work: Work, spec: str | None, cells: Iterable[Cell]) -> Iterator[PackedCell]:
        """The results of cells, in the order in which they finish."""
        spec = needs_spec(spec)
        queue = _Queue(iter(cells))
        lost = 0
        while True:
            try:
                yield from self._round(work, spec, queue)
            except BrokenProcessPool:
                self.close()
                lost += 1
                if lost > self.retries:
                    raise RuntimeError(
                        f"worker processes died {how_often(lost)}, perhaps because memory ran out. "
                        "Use fewer workers or a smaller batch size."
                    ) from None
                queue.restore()
            else:
                return

    def close(self) -> None:
        """Stop all workers."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None

    def _round(self, work: Work, spec: str, queue: _Queue) -> Iterator[PackedCell]:
        """Compute the queue until it is empty or a worker dies."""
        if self._pool is None:
            spawn = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(self.count, spawn, initializer=_begin_worker)
        while True:
            while len(queue.running) < self.count and queue.next():
                future = self._pool.submit(compute, spec, queue.current, work.remedies)
                queue.start(future)
            if not queue.running:
                return
            for future in wait(queue.running, return_when=FIRST_COMPLETED).done:
                packed = future.result()
                del queue.running[future]
                yield packed


class _Queue:
    """Cells that wait or run. A cell stays here until its result has arrived."""

    def __init__(self, cells: Iterator[Cell]) -> None:
        self._cells = cells
        self._again: list[Cell] = []
        self.running: dict[Future[PackedCell], Cell] = {}

    def next(self) -> bool:
        """Whether there is a cell to submit; it is then `current`."""
        if self._again:
            return True
        cell = next(self._cells, None)
        if cell is None:
            return False
        self._again.append(cell)
        return True

    @property
    def current(self) -> Cell:
        """The cell to submit."""
        return self._again[-1]

    def start(self, future: Future[PackedCell]) -> None:
        """The current cell was submitted."""
        self.running[future] = self._again.pop()

    def restore(self) -> None:
        """All running cells must be computed again."""
        self._again += self.running.values()
        self.running = {}


def needs_spec(spec: str | None) -> str:
    """The specification, or a ValueError: other processes load the target from it."""
    if spec is None:
        raise ValueError(
            "this executor needs a target that a worker can load: 'zoo:NAME', 'file.py:factory' "
            "or 'package.module:factory'. A model in memory is audited by the serial executor."
        )
    return spec


def _begin_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process decides when to stop
    sys.stdout = sys.stderr  # standard output is for results of the parent process
