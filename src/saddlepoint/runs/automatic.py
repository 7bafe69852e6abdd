"""Chooses where the cells of an audit are computed, once its plan is known."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from dataclasses import dataclass

import torch

from saddlepoint.audits.profile import Spent, Stage
from saddlepoint.phrases import count
from saddlepoint.runs.cores import (
    available_cores,
    expected_seconds,
    inside_other_workers,
    processes_in_memory,
    why_not_copied,
)
from saddlepoint.runs.executors import Executor, Processes, Serial
from saddlepoint.runs.forked import Forked
from saddlepoint.runs.work import Work

_COPY_SECONDS = 0.5  # until copies of this process compute cells
_IMPORT_SECONDS = 4.0  # until a new process has imported torch


@dataclass(frozen=True)
class Automatic:
    """All cores, if that saves time. The bytes of the results are the same.

    Cells are computed by copies of this process (`Forked`). Where these are not possible, new
    processes load the target from its specification (`Processes`). It is one process if there is
    no specification either, if the audit is short, on a GPU, and inside of other workers.
    """

    workers: int | None = None  # processes; None: one per core, if they save time

    def choose(self, work: Work, say: Callable[[str], None], *, has_spec: bool) -> Executor:
        """The executor of an audit.

        Args:
            work: the plan and the target.
            say: receives a message if a long audit cannot use several processes.
            has_spec: whether new processes can load the target.
        """
        workers = self._most(work)
        if workers < 2:
            return Serial()
        problem = _problem(work)
        start = _IMPORT_SECONDS + _probe_seconds(work) if problem else _COPY_SECONDS
        if self.workers is None and _seconds_saved(work, workers) < 2 * start:
            return Serial()
        if not problem:
            return Forked(workers, say)
        if has_spec:
            return Processes(workers)
        say(f"The audit runs in one process: {problem}.")
        return Serial()

    def _most(self, work: Work) -> int:
        """The number of processes, if they save time."""
        cells = len(work.plan.cells)
        if multiprocessing.current_process().daemon:  # it must not start processes
            return 1
        if self.workers is not None:
            return min(self.workers, cells)
        if inside_other_workers() or work.plan.job.x.device.type != "cpu":
            return 1
        most = min(available_cores() // _threads(work), cells)
        return min(most, processes_in_memory()) if most > 1 else 1


def _problem(work: Work) -> str:
    """Why no copies of this process can be used, as part of a sentence; empty: they can."""
    if _threads(work) > 1:
        return f"each cell uses {count(_threads(work), 'thread')}"
    return why_not_copied(work.plan.job)


def _threads(work: Work) -> int:
    return work.threads or torch.get_num_threads()


def _probe_seconds(work: Work) -> float:
    return work.plan.preparation.get(Stage.PROBE, Spent()).seconds


def _seconds_saved(work: Work, workers: int) -> float:
    """How much sooner the attacks are finished."""
    return expected_seconds(work.plan) * (1 - 1 / workers)
