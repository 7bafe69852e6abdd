"""Finished cells, in memory or on disk, and the loop that computes missing ones."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import Protocol, runtime_checkable

from saddlepoint.audits.cells import AttackCell, Measurement, Values
from saddlepoint.evaluation import Episode
from saddlepoint.phrases import agree, count_of
from saddlepoint.runs.executors import Executor
from saddlepoint.runs.store import PackedCell, Store, StoreError
from saddlepoint.runs.work import Cell, Work

_POLL = 0.2  # seconds between two checks of a cell that another process computes


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


class Stage(StrEnum):
    """The six stages of an audit (`saddlepoint.audits.pipeline`)."""

    PROBE = "probe"
    PLAN = "plan"
    ATTACK = "attack"
    DIAGNOSE = "diagnose"
    REMEDY = "remedy"
    CONCLUDE = "conclude"


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
    def put(self, packed: PackedCell) -> None: ...
    def claimed(self, cells: Mapping[str, Cell], stopping: threading.Event) -> Iterator[Cell]: ...


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
    """
    with stop_between_cells() as stopping:
        for packed in executor.run(work, spec, cache.claimed(missing, stopping)):
            if packed.key not in missing:
                raise StrangeCellError(
                    f"a worker computed an unknown cell ({packed.key[:12]}): the file of the "
                    "target was changed during the run, or differs on another machine. Finished "
                    "cells are kept: run the same command again."
                )
            cache.put(packed)
            if watch:
                _report(watch, missing[packed.key], packed)
        if stopping.is_set():
            done = sum(cache.has(key) for key in missing)
            raise Interrupted(
                f"stopped: {count_of(done, len(missing), 'cell')} of this step "
                f"{agree(done, 'is', 'are')} finished and kept. Run the same command to continue."
            )


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

    def put(self, packed: PackedCell) -> None:
        """Keep a result."""
        self.cells[packed.key] = packed

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

    def has(self, key: str) -> bool:
        """Whether there is an undamaged cell. A damaged one is reported and removed."""
        if not self.store.has(key):
            return False
        try:
            self.store.check(key)
        except StoreError as error:
            self.store.discard(key)
            self.store.log("damaged", key=key, error=str(error))
            if self.watch:
                self.watch.say(f"{error} It is computed again.")
            return False
        return True

    def get(self, key: str) -> Episode:
        """The result of an attack cell."""
        return replace(self.store.get(key), seconds=self.seconds.get(key, 0.0))

    def values(self, key: str) -> Values:
        """The result of a measurement."""
        return self.store.values(key)

    @cached_property
    def seconds(self) -> dict[str, float]:
        """Seconds by key. Read once, when all cells are finished."""
        events = self.store.events()
        return {event["key"]: event["seconds"] for event in events if event["event"] == "cell"}

    def put(self, packed: PackedCell) -> None:
        """Store a result and release its lock."""
        self.store.put(packed)
        self.store.log("cell", key=packed.key, seconds=packed.seconds)
        self.claims.pop(packed.key).close()

    def claimed(self, cells: Mapping[str, Cell], stopping: threading.Event) -> Iterator[Cell]:
        """Cells that this process may compute.

        Cells that another process computes come last: it finishes them, or dies and frees them.
        """
        waiting = dict(cells)
        while waiting:
            postponed = {}
            for key, cell in waiting.items():
                if stopping.is_set():
                    return
                if self.store.has(key):
                    continue
                stack = ExitStack()
                if not stack.enter_context(self.store.claim(key)):
                    stack.close()
                    postponed[key] = cell
                elif self.store.has(key):
                    stack.close()
                else:
                    self.claims[key] = stack
                    yield cell
            if len(postponed) == len(waiting):
                time.sleep(_POLL)
            waiting = postponed


@contextmanager
def stop_between_cells() -> Iterator[threading.Event]:
    """The first interrupt stops after the current cell, the second one at once."""
    stopping = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stopping
        return
    before = signal.getsignal(signal.SIGINT)

    def stop(signum: int, frame: object) -> None:  # noqa: ARG001
        stopping.set()
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, stop)
    try:
        yield stopping
    finally:
        signal.signal(signal.SIGINT, before)
