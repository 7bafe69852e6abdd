"""Who computes the cells: this process, a process per core, or a cluster (`ray.py`)."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Protocol

from saddlepoint.runs.store import Packed
from saddlepoint.runs.work import Cell, Work, compute


class Executor(Protocol):
    """Computes cells as they are handed out; asks for the next one only when it has somebody free for it."""

    def run(self, work: Work, spec: str | None, cells: Iterable[Cell]) -> Iterator[Packed]: ...


@dataclass(frozen=True)
class Serial:
    """One cell after the other, here."""

    def run(self, work: Work, spec: str | None, cells: Iterable[Cell]) -> Iterator[Packed]:  # noqa: ARG002
        for cell in cells:
            yield work.compute(cell)


@dataclass(frozen=True)
class Processes:
    """A process per core, each of which loads the target once. A worker that dies takes no cell along: it is tried again."""

    workers: int | None = None  # None: one per core
    retries: int = 2

    def run(self, work: Work, spec: str | None, cells: Iterable[Cell]) -> Iterator[Packed]:
        spec = needs_spec(spec)
        count = self.workers or os.cpu_count() or 1
        queue = iter(cells)
        lost = 0
        again: list[Cell] = []
        while True:
            running: dict[Future[Packed], Cell] = {}
            try:
                with ProcessPoolExecutor(
                    count, multiprocessing.get_context("spawn"), initializer=_begin
                ) as pool:
                    while True:
                        while (
                            len(running) < count
                            and (cell := again.pop() if again else next(queue, None)) is not None
                        ):
                            again.append(
                                cell
                            )  # until somebody has it: a pool may also break while it is handed a cell
                            future = pool.submit(compute, spec, cell, work.remedies)
                            running[future] = again.pop()
                        if not running:
                            return
                        for future in wait(running, return_when=FIRST_COMPLETED).done:
                            packed = future.result()
                            del running[future]
                            yield packed
            except BrokenProcessPool:
                lost += 1
                if lost > self.retries:
                    raise RuntimeError(
                        f"worker processes died {lost} times, perhaps for want of memory. Use fewer workers or a smaller batch."
                    ) from None
                again += running.values()


def needs_spec(spec: str | None) -> str:
    """Other processes load the target themselves: a model that lives only in this one cannot travel."""
    if spec is None:
        raise ValueError(
            "this executor needs a target that a worker can load: 'zoo:NAME', 'file.py:factory' or 'package.module:factory'. "
            "A model in memory is audited by the serial executor."
        )
    return spec


def _begin() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to stop
    sys.stdout = sys.stderr  # and what is a result: whatever a target prints is none
