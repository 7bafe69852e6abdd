"""The run: hand out the cells that are missing, keep what comes back, conclude."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from saddlepoint.attack.space import Ball, Linf
from saddlepoint.auditing.cell import Group
from saddlepoint.auditing.plan import Target, conclude, plan
from saddlepoint.auditing.result import Audit
from saddlepoint.auditing.suite import Budget
from saddlepoint.describe import describe
from saddlepoint.game import Adversary, Episode, Threat
from saddlepoint.run.executor import Executor, Serial
from saddlepoint.run.spec import RunSpec, write
from saddlepoint.run.store import Packed, Store, StoreError, identity
from saddlepoint.run.work import Cell, Work, load

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


def audit(
    target: Target,
    x: Tensor,
    y: Tensor,
    *,
    threat: Threat | Ball = Linf(8 / 255),  # noqa: B008
    budget: Budget = "standard",
    adversaries: Sequence[Adversary] = (),
    seed: int = 0,
    out: str | Path | None = None,
    device: str | torch.device | None = None,
    batch_size: int = 128,
    name: str | None = None,
    watch: Watch | None = None,
) -> Audit:
    """How robust is the target on these images? An upper bound, with an interval, symptoms, and the points that show it.

    `target` is an nn.Module that maps pixels in [0, 1] to logits, a `Defense`, or any callable on batches (then only gradient-free
    attacks are possible). `budget` is "quick", "standard" or "thorough"; `adversaries` replace those that the budget would compose.
    With `out`, every finished piece is kept there, the same call goes on where it was stopped, and record and report are written.
    """
    if device is not None:
        x, y = x.to(device), y.to(device)
        target = target.to(device) if isinstance(target, nn.Module) else target
    planned = plan(
        target, x, y, threat=threat, budget=budget, adversaries=adversaries, seed=seed, batch_size=batch_size, name=name
    )  # fmt: skip
    store = None if out is None else Store(Path(out))
    return run(Work.of(planned), store=store, watch=watch)


def run_spec(spec: RunSpec, out: Path, *, executor: Executor, watch: Watch | None = None) -> Audit:
    """The audit that a specification describes, kept in the folder `out`; a copy of the specification is kept with it."""
    return run(load(spec), store=Store(out), executor=executor, spec=spec, watch=watch)


def run(
    work: Work,
    *,
    store: Store | None = None,
    executor: Executor | None = None,
    spec: RunSpec | None = None,
    watch: Watch | None = None,
) -> Audit:
    """Compute what is missing, conclude, and write record and report where there is a store."""
    started, executor = time.perf_counter(), executor or Serial()
    shelf, about = _Memory() if store is None else _Disk(store, watch), _about(work, spec)
    if store is not None:
        _ask(store, about, watch)
        if spec is not None:
            store.keep("spec.toml", write(spec).encode())
    missing = [cell for cell in work.plan.cells if not shelf.has(work.keys[cell])]
    if watch:
        watch.begin(work, missing)
    with _stop_between_cells() as stopping:
        of_key, text = {key: cell for cell, key in work.keys.items()}, spec.model_dump_json() if spec else None
        for packed in executor.run(work, text, shelf.claimed(work, missing, stopping)):
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
            raise Interrupted(f"stopped: {done} of {len(work.keys)} cells are finished and kept. Run the same command to go on.")
    result = conclude(work.plan, _groups(work, shelf), time.perf_counter() - started)
    if store is not None:
        result = replace(result, run=identity(about))
        result.to_html(result.save(store.folder) / "report.html")
        store.log("concluded", run=result.run, robust_accuracy=result.robust_accuracy, seconds=result.seconds)
    return result


def _ask(store: Store, about: dict[str, Any], watch: Watch | None) -> None:
    """Write down what is asked for. Cells of another request stay, and are found again when it is made again; its record goes."""
    held = store.create(about)
    store.log("asked", run=identity(about), target=about["target"]["name"], threat=about["threat"], folder=str(Path.cwd()))
    if held and watch and (held["target"], held["threat"]) != (about["target"], about["threat"]):
        name, space = held["target"]["name"], held["threat"]["space"]
        watch.say(
            f"{store.folder} held an audit of {name} (p={space['p']}, radius {space['radius']:g}). Its cells stay, its record and "
            "report are replaced by this one's. Use another --out to keep both."
        )


def _about(work: Work, spec: RunSpec | None) -> dict[str, Any]:
    """What was asked for: as passed, and with all defaults."""
    return {
        "passed": spec.model_dump(mode="json", exclude_unset=True) if spec else None,
        "spec": spec.model_dump(mode="json") if spec else None,
        "target": {"name": work.plan.name, "sha256": work.target},
        "threat": describe(work.plan.job.threat),
        "adversaries": [describe(a) for a in work.plan.adversaries],
        "seed": work.plan.job.seed,
        "batch_size": work.plan.job.batch_size,
        "device": str(work.plan.job.x.device),
        "unit": work.plan.job.defense.unit,
        "random": work.plan.job.defense.random,
        "examples": len(work.plan.job.x),
        "cells": sorted(work.keys.values()),
    }


def _groups(work: Work, shelf: _Memory | _Disk) -> list[Group]:
    count = len(work.plan.adversaries)
    return [
        Group.of(work.plan.job, rows, [shelf.get(work.keys[g, a]) for a in range(count)])
        for g, rows in enumerate(work.plan.job.groups)
    ]


@dataclass
class _Memory:
    """Finished cells of a run that is not kept."""

    cells: dict[str, Episode] = field(default_factory=dict)

    def has(self, key: str) -> bool:
        return key in self.cells

    def get(self, key: str) -> Episode:
        return self.cells[key]

    def put(self, packed: Packed) -> None:
        self.cells[packed.key] = replace(packed.episode(), seconds=packed.seconds)

    def claimed(self, work: Work, cells: Sequence[Cell], stopping: threading.Event) -> Iterator[Cell]:  # noqa: ARG002
        for cell in cells:
            if stopping.is_set():
                return
            yield cell


@dataclass
class _Disk:
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
        return {event["key"]: event["seconds"] for event in self.store.events() if event["event"] == "cell"}

    def put(self, packed: Packed) -> None:
        self.store.put(packed)
        self.store.log("cell", key=packed.key, seconds=packed.seconds)
        self.claims.pop(packed.key).close()

    def claimed(self, work: Work, cells: Sequence[Cell], stopping: threading.Event) -> Iterator[Cell]:
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
def _stop_between_cells() -> Iterator[threading.Event]:
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
