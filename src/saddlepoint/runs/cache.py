"""Finished cells, in memory or on disk, and the loop that computes missing ones."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Protocol, runtime_checkable

from saddlepoint.audits.cells import AttackCell, Measurement, Values
from saddlepoint.audits.profile import Spent, Stage
from saddlepoint.evaluation import Episode
from saddlepoint.passes import PassCount
from saddlepoint.phrases import agree, count, count_of
from saddlepoint.runs.executors import Executor
from saddlepoint.runs.packed_cell import PackedCell
from saddlepoint.runs.store import NewerError, Store, StoreError
from saddlepoint.runs.work import Cell, FailedCell, Work

_MOST_FAILURES = 3  # cells; after as many, no further cell is started


class Watch(Protocol):
    """Follows the progress of a run."""

    def begin(self, work: Work, missing: Sequence[AttackCell]) -> None:
        """Attack cells are about to be computed."""

    def cell(self, cell: AttackCell, episode: Episode) -> None:
        """An attack cell was computed."""

    def measure(self, missing: Sequence[Measurement]) -> None:
        """Measurements are about to be computed."""

    def measured(self, cell: Measurement) -> None:
        """A measurement was computed."""

    def say(self, message: str) -> None:
        """Show a message."""


@runtime_checkable
class StageWatch(Protocol):
    """A watch that also follows the stages of an audit. Other watches ignore them."""

    def stage(self, stage: Stage, message: str) -> None:
        """A stage begins, or a further part of it."""


def report_stage(watch: Watch | None, stage: Stage, message: str) -> None:
    """Report that a stage begins, if the watch follows stages."""
    if isinstance(watch, StageWatch):
        watch.stage(stage, message)


class Interrupted(RuntimeError):  # noqa: N818
    """Stopped on request, between two cells."""


class StrangeCellError(RuntimeError):
    """A worker computed a cell of another target than the driver."""


class Cache(Protocol):
    """Finished cells by key."""

    def has(self, key: str) -> bool: ...
    def get(self, key: str) -> Episode: ...
    def values(self, key: str) -> Values: ...
    def spent(self, key: str) -> Spent: ...
    def put(self, packed: PackedCell) -> None: ...
    def fail(self, key: str, failed: FailedCell) -> None: ...
    def claimed(
        self, cells: Mapping[str, Cell], stopping: threading.Event
    ) -> Iterator[Cell | None]: ...


class CellsFailedError(RuntimeError):
    """The target does not let some cells have a result. The other cells are kept."""


def fill(
    work: Work,
    cache: Cache,
    missing: Mapping[str, Cell],
    executor: Executor,
    spec: str | None,
    watch: Watch | None,
) -> None:
    """Compute missing cells and put them into the cache.

    Args:
        work: plan and target.
        cache: where results go.
        missing: cells by key.
        executor: computes cells.
        spec: the specification as JSON, for executors with other processes.
        watch: follows progress.

    Raises:
        Interrupted: the user interrupted the run; finished cells are kept.
        StrangeCellError: a worker has another target.
        CellsFailedError: some cells have no result because of the target.
    """
    failures: list[str] = []
    with stop_between_cells() as stopping:
        for packed in executor.run(work, spec, cache.claimed(missing, stopping)):
            if isinstance(packed, FailedCell):
                cache.fail(work.key(packed.cell), packed)
                failures.append(f"{_title(work, packed.cell)}: {packed.reason}.")
                if watch:
                    watch.say(f"Failed: {failures[-1]}")
                if len(failures) == _MOST_FAILURES:
                    stopping.set()  # cells that run already are finished
                continue
            if packed.key not in missing:
                raise StrangeCellError(
                    f"a worker computed an unknown cell ({packed.key[:12]}): the file of the "
                    "target was changed during the run, or differs on another machine. Finished "
                    "cells are kept: run the same command again."
                )
            cache.put(packed)
            if watch:
                _report(watch, missing[packed.key], packed)
        if failures:
            raise _failed(cache, missing, failures)
        if stopping.is_set():
            done = sum(cache.has(key) for key in missing)
            raise Interrupted(
                f"stopped: {count_of(done, len(missing), 'cell')} of this step "
                f"{agree(done, 'is', 'are')} finished and kept. Run the same command to continue."
            )


def _failed(cache: Cache, missing: Mapping[str, Cell], failures: Sequence[str]) -> CellsFailedError:
    done = sum(cache.has(key) for key in missing)
    first = (
        f"{count(len(failures), 'cell')} failed because of the target; "
        f"{count_of(done, len(missing), 'cell')} of this step {agree(done, 'is', 'are')} finished "
        "and kept. Fix the target and run the same command again."
    )
    return CellsFailedError("\n".join([first, *(f"  {failure}" for failure in failures)]))


def _title(work: Work, cell: Cell) -> str:
    """Adversary and images of a cell, for messages."""
    if isinstance(cell, Measurement):
        rows = cell.rows
        name = cell.name
    else:
        group, number = cell
        rows = work.plan.job.groups[group]
        name = work.plan.adversaries[number].name
    first = int(rows[0])
    last = int(rows[-1])
    return f"{name} on {agree(len(rows), f'image {first}', f'images {first} to {last}')}"


def _report(watch: Watch, cell: Cell, packed: PackedCell) -> None:
    if isinstance(cell, Measurement):
        watch.measured(cell)
    else:
        watch.cell(cell, packed.episode())


@dataclass
class MemoryCache:
    """Finished cells of a run that is not stored."""

    cells: dict[str, PackedCell] = field(default_factory=dict)

    def has(self, key: str) -> bool:
        """Whether a cell is finished."""
        return key in self.cells

    def get(self, key: str) -> Episode:
        """The result of an attack cell."""
        return self.cells[key].episode()

    def values(self, key: str) -> Values:
        """The result of a measurement."""
        return self.cells[key].values()

    def spent(self, key: str) -> Spent:
        """The time and the passes of a cell."""
        return Spent(self.cells[key].seconds, self.cells[key].passes)

    def put(self, packed: PackedCell) -> None:
        """Keep a result."""
        self.cells[packed.key] = packed

    def fail(self, key: str, failed: FailedCell) -> None:  # noqa: ARG002
        """Raise what the target raised: there is nothing to keep."""
        if isinstance(failed.error, Exception):
            raise failed.error

    def claimed(self, cells: Mapping[str, Cell], stopping: threading.Event) -> Iterator[Cell]:
        """All cells, until the user interrupts the run."""
        for cell in cells.values():
            if stopping.is_set():
                return
            yield cell


@dataclass
class DiskCache:
    """Finished cells of a stored run, shared with other processes that work in the same folder."""

    store: Store
    watch: Watch | None
    claims: dict[str, ExitStack] = field(default_factory=dict)
    stored: float = 0.0  # seconds that writing of cells took

    def has(self, key: str) -> bool:
        """Whether there is an undamaged cell. A damaged one is reported and removed.

        Raises:
            NewerError: a newer version wrote it.
        """
        if not self.store.has(key):
            return False
        try:
            self.store.check(key)
        except NewerError:
            raise  # this version must not replace it
        except StoreError as error:
            self.store.discard(key)
            self.store.log("damaged", key=key, error=str(error))
            if self.watch:
                self.watch.say(f"{error} It is computed again.")
            return False
        return True

    def get(self, key: str) -> Episode:
        """The result of an attack cell."""
        return replace(self.store.get(key), seconds=self.spent(key).seconds)

    def values(self, key: str) -> Values:
        """The result of a measurement."""
        return self.store.values(key)

    def spent(self, key: str) -> Spent:
        """The time and the passes of a cell; zero if the ledger does not contain them."""
        return self._ledger.get(key, Spent())

    @cached_property
    def _ledger(self) -> dict[str, Spent]:
        """Time and passes by key. Read once, when all cells are finished."""
        return {
            event["key"]: Spent(
                event["seconds"], PassCount(event.get("forward", 0), event.get("backward", 0))
            )
            for event in self.store.events()
            if event["event"] == "cell"
        }

    def put(self, packed: PackedCell) -> None:
        """Store a result and release its lock."""
        started = time.perf_counter()
        self.store.put(packed)
        self.store.log("cell", key=packed.key, seconds=packed.seconds, **asdict(packed.passes))
        self.claims.pop(packed.key).close()
        self.stored += time.perf_counter() - started

    def fail(self, key: str, failed: FailedCell) -> None:
        """Log the failure and release the lock."""
        self.store.log("failed", key=key, reason=failed.reason)
        self.claims.pop(key).close()

    def claimed(
        self, cells: Mapping[str, Cell], stopping: threading.Event
    ) -> Iterator[Cell | None]:
        """Cells that this process may compute.

        Cells that another process computes come last: it finishes them, or dies and frees them.
        Until then the result is None. It does not wait, because the other process may wait for
        cells of this one.
        """
        waiting = list(cells)
        while waiting:
            postponed = []
            for key in waiting:
                if stopping.is_set():
                    return
                if self.store.has(key):
                    continue
                stack = ExitStack()
                if not stack.enter_context(self.store.claim(key)):
                    stack.close()
                    postponed.append(key)
                elif self.store.has(key):
                    stack.close()
                else:
                    self.claims[key] = stack
                    yield cells[key]
            if postponed and len(postponed) == len(waiting):
                yield None
            waiting = postponed


@contextmanager
def stop_between_cells() -> Iterator[threading.Event]:
    """The first Ctrl-C or SIGTERM stops after the current cell, the second one at once."""
    stopping = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stopping
        return
    before = {one: signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)}

    def stop(signum: int, frame: object) -> None:  # noqa: ARG001
        stopping.set()
        for one in before:
            signal.signal(one, _stop_now)

    for one in before:
        signal.signal(one, stop)
    try:
        yield stopping
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def _stop_now(signum: int, frame: object) -> None:  # noqa: ARG001
    raise KeyboardInterrupt
