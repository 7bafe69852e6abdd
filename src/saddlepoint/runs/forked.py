"""Computes cells in copies of this process, which have the target and the data already."""

from __future__ import annotations

import multiprocessing
import pickle
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection

import torch
from torch import Tensor

from saddlepoint.attacks.oracle import grants
from saddlepoint.audits.cells import Job, with_fewer_rows
from saddlepoint.defenses import Context
from saddlepoint.locate import describe_error
from saddlepoint.rng import Keys
from saddlepoint.runs.executors import Processes, Result, Serial
from saddlepoint.runs.global_state import kept_globals
from saddlepoint.runs.hashing import tensor_digest
from saddlepoint.runs.locks import close_inherited_locks
from saddlepoint.runs.work import Cell, FailedCell, Work, result_of, torch_threads, with_cells
from saddlepoint.runs.workers import Task, Worker, begin_worker, read, serve, write

_ROWS = 16  # of the images that every copy evaluates first
_TRIAL_SECONDS = 20.0  # until a worker must have evaluated a few images
_TRIAL_FACTOR = 20  # times as long as this process needed for them

_NOT_PICKLABLE = (pickle.PicklingError, AttributeError, TypeError)  # raised by pickle


class Forked(Processes):
    """Computes cells in copies of this process, on Linux and on the CPU.

    A copy starts at once, shares the memory of target and data, and needs no specification, so
    that any model in memory can be audited. First, every copy evaluates the target on a few
    images. If one does not return the bytes that this process computes, or does not return at all,
    this process computes all cells.

    Args:
        workers: number of copies.
        say: receives a message if the copies cannot be used.
    """

    def __init__(self, workers: int, say: Callable[[str], None]) -> None:
        super().__init__(workers)
        self._say = say
        self._copied: Work | None = None  # what the copies have: the plan without remedies
        self._current: Work | None = None  # the same with remedies
        self._in_memory = False  # whether there is no specification of the target
        self._problem = ""  # why the copies cannot be used

    def run(self, work: Work, spec: str | None, cells: Iterable[Cell | None]) -> Iterator[Result]:
        """The results of cells, in the order in which they finish."""
        self._current = work
        self._in_memory = spec is None
        if not self._pool and not self._problem:
            self._copied = work
            self._start_all(work)
        if self._problem:
            yield from Serial().run(work, spec, cells)
        else:
            yield from self._run(work, spec or "", cells)

    def _start_all(self, work: Work) -> None:
        """Start all copies at once, and compare their outputs with those of this process."""
        while len(self._pool) < self.count:
            self._add()
        started = time.monotonic()
        expected = _outputs_or_error(work)
        patience = max(_TRIAL_SECONDS, _TRIAL_FACTOR * (time.monotonic() - started))
        deadline = time.monotonic() + patience
        problems = [_problem(worker, expected, deadline) for worker in self._pool]
        self._problem = next(filter(None, problems), "")
        if self._problem:
            self.close()
            self._say(f"The audit runs in one process: {self._problem}.")

    def _new_worker(self) -> Worker:
        assert self._copied is not None, "copies are started for a work"
        return _Copy(self._copied, [worker.connection for worker in self._pool])

    def _give(self, worker: Worker, task: Task, work: Work) -> Iterator[Result]:
        """Cells that cannot be pickled, such as those of losses in closures, are computed here."""
        try:
            worker.give(task)
        except _NOT_PICKLABLE:
            worker.unfinished = ()
            return (result_of(work, cell) for cell in task.cells)
        return iter(())

    def _received(self, result: Result) -> Result:
        """An error of a model in memory is raised in this process, as it is without workers."""
        if self._in_memory and isinstance(result, FailedCell):
            assert self._current is not None, "there are workers"
            return result_of(self._current, result.cell)
        return result


class _Copy(Worker):
    """A copy of this process that computes cells.

    Args:
        work: the work that it computes cells of.
        others: connections of this process to other workers, which the copy closes.
    """

    def __init__(self, work: Work, others: Sequence[Connection]) -> None:
        with warnings.catch_warnings():
            # Other threads, such as that of a progress bar, hold no lock that a worker needs.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._start(multiprocessing.get_context("fork"), partial(_serve, work, others))


def _serve(work: Work, others: Sequence[Connection], connection: Connection) -> None:
    """Write the outputs for a few images, then compute cells."""
    begin_worker()
    close_inherited_locks()
    for other in others:
        other.close()
    # The threads of this process do not exist in a copy, and waiting for them would not end.
    torch.set_num_threads(1)
    write(connection, _outputs_or_error(work))
    serve(connection, lambda task: with_cells(work, task.cells, task.remedies))


@dataclass(frozen=True)
class _Error:
    """The target raised an error."""

    text: str


def _outputs_or_error(work: Work) -> str | _Error:
    """Hash of the outputs of the target and of their gradient, for a few images."""
    try:
        with kept_globals(), torch_threads(work.threads):
            found = with_fewer_rows(lambda rows: _outputs(work.plan.job, rows), _ROWS)
    except Exception as error:
        return _Error(describe_error(error))
    return tensor_digest(*found)


def _outputs(job: Job, rows: int) -> list[Tensor]:
    x = job.x[:rows].clone()
    differentiable = grants(job.defense.grants, "gradient")
    context = Context(Keys.of(0, torch.arange(len(x))))
    with torch.set_grad_enabled(differentiable):
        logits = job.defense.respond(x.requires_grad_(differentiable), context)
        gradient = None
        if logits.requires_grad:
            (gradient,) = torch.autograd.grad(logits.sum(), x, allow_unused=True)
    return [logits] if gradient is None else [logits, gradient]


def _problem(worker: Worker, expected: str | _Error, deadline: float) -> str:
    """Why a copy cannot be used, as part of a sentence; empty if it can."""
    if not worker.connection.poll(max(deadline - time.monotonic(), 0.0)):
        return "the target does not return in a copy of this process"
    try:
        found = read(worker.connection)
    except (EOFError, ConnectionResetError):
        return f"a copy of this process ended when it ran the target ({worker.cause_of_death()})"
    if isinstance(found, _Error):
        return f"the target raised {found.text} in a copy of this process"
    return "" if found == expected else "the target has other outputs in a copy of this process"
