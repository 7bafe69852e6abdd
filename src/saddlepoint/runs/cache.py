"""Where finished cells are kept while a run goes on, and the loop that fills the gaps."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol

from saddlepoint.evaluation import Episode
from saddlepoint.runs.executors import Executor
from saddlepoint.runs.store import Packed, Store, StoreError
from saddlepoint.runs.work import Cell, Work

_POLL = 0.2  # seconds between two looks at a cell that another process computes


class Watch(Protocol):
    """Somebody who wants to know how far a run is."""

    def begin(self, work: Work, missing: Sequence[Cell]) -> None: ...
    def cell(self, cell: Cell, episode: Episode) -> None: ...
    def say(self, message: str) -> None: ...


class Interrupted(RuntimeError):  # noqa: N818
    """Stopped on request, between two cells."""


class StrangeCellError(RuntimeError):
    """A worker does not see the target that the run was asked for."""


def fill(
    work: Work,
    shelf: Memory | DiskCache,
    missing: Sequence[Cell],
    executor: Executor,
    spec: str | None,
    watch: Watch | None,
) -> None:
    """Compute the missing cells and put them on the shelf; stop between two of them if asked to."""
    of_key = {key: cell for cell, key in work.keys.items()}
    with stop_between_cells() as stopping:
        for packed in executor.run(work, spec, shelf.claimed(work, missing, stopping)):
            if packed.key not in of_key:
                raise StrangeCellError(
                    f"a worker computed a cell nobody asked for ({packed.key[:12]}): the file of the target was changed while it "
                    "ran, or is another on another machine. Finished cells are kept: run the same command again."
                )
            shelf.put(packed)
            if watch:
                watch.cell(of_key[packed.key], packed.episode())
        if stopping.is_set():
            done = sum(shelf.has(key) for key in work.keys.values())
            raise Interrupted(
                f"stopped: {done} of {len(work.keys)} cells are finished and kept. Run the same command to go on."
            )


@dataclass
class Memory:
    """Finished cells of a run that is not kept."""

    cells: dict[str, Episode] = field(default_factory=dict)

    def has(self, key: str) -> bool:
        return key in self.cells

    def get(self, key: str) -> Episode:
        return self.cells[key]

    def put(self, packed: Packed) -> None:
        self.cells[packed.key] = replace(packed.episode(), seconds=packed.seconds)

    def claimed(
        self,
        work: Work,  # noqa: ARG002
        cells: Sequence[Cell],
        stopping: threading.Event,
    ) -> Iterator[Cell]:
        for cell in cells:
            if stopping.is_set():
                return
            yield cell


@dataclass
class DiskCache:
    """Finished cells of a run that is kept, and shared with whoever else works in the same folder."""

    store: Store
    watch: Watch | None
    claims: dict[str, ExitStack] = field(default_factory=dict)

    def has(self, key: str) -> bool:
        """Is there a sound cell? A damaged one is reported and taken out of the way."""
        if not self.store.has(key):
            return False
        try:
            self.store.get(key)
        except StoreError as error:
            self.store.discard(key)
            self.store.log("damaged", key=key, error=str(error))
            if self.watch:
                self.watch.say(f"{error} It is computed again.")
            return False
        return True

    def get(self, key: str) -> Episode:
        return replace(self.store.get(key), seconds=self.seconds.get(key, 0.0))

    @cached_property
    def seconds(self) -> dict[str, float]:
        """Of every cell. Read once, when all are finished."""
        return {
            event["key"]: event["seconds"]
            for event in self.store.events()
            if event["event"] == "cell"
        }

    def put(self, packed: Packed) -> None:
        self.store.put(packed)
        self.store.log("cell", key=packed.key, seconds=packed.seconds)
        self.claims.pop(packed.key).close()

    def claimed(
        self, work: Work, cells: Sequence[Cell], stopping: threading.Event
    ) -> Iterator[Cell]:
        """Cells that are ours to compute. Those that another process holds come last: it finishes them, or dies and leaves them."""
        waiting = list(cells)
        while waiting:
            postponed = []
            for cell in waiting:
                key = work.keys[cell]
                if stopping.is_set():
                    return
                if self.store.has(key):
                    continue
                stack = ExitStack()
                if not stack.enter_context(self.store.claim(key)):
                    stack.close()
                    postponed.append(cell)
                elif self.store.has(key):
                    stack.close()
                else:
                    self.claims[key] = stack
                    yield cell
            if postponed == waiting:
                time.sleep(_POLL)
            waiting = postponed


@contextmanager
def stop_between_cells() -> Iterator[threading.Event]:
    """The first interrupt asks to stop after the current cell, the second stops at once."""
    stopping = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stopping
        return
    before = signal.getsignal(signal.SIGINT)

    def ask(signum: int, frame: object) -> None:  # noqa: ARG001
        stopping.set()
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, ask)
    try:
        yield stopping
    finally:
        signal.signal(signal.SIGINT, before)
