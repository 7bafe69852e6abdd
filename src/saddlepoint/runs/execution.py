"""Runs the cells of an audit with an executor and keeps the results in a cache."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar, overload

from saddlepoint.audits import Plan
from saddlepoint.audits.cells import AttackCell, LazyCells, Measurement, Recheck, Values
from saddlepoint.audits.profile import Spent, Stage, Stopwatch
from saddlepoint.evaluation import Episode
from saddlepoint.phrases import count, count_of, names
from saddlepoint.runs.cache import (
    Cache,
    DiskCache,
    MemoryCache,
    Watch,
    fill,
    report_stage,
)
from saddlepoint.runs.eta import CLEAN
from saddlepoint.runs.executors import Executor, Serial
from saddlepoint.runs.own_files import DIAGNOSTICS
from saddlepoint.runs.store import Store
from saddlepoint.runs.work import Cell, Work

T = TypeVar("T")


class CachedExecution:
    """An `audits.pipeline.Execution` that computes missing cells only.

    `work` and `diagnostics` say which cells have been requested so far, and `computed` how many of
    them were missing.

    Args:
        work: the plan and the target.
        store: where cells are stored; None: in memory.
        executor: computes cells; default: this process.
        spec: the specification as JSON, for executors with other processes.
        watch: follows progress.
        on_request: called when remedies or measurements were added to the request.
        memory: cells in memory that are shared with other executions.
    """

    def __init__(
        self,
        work: Work,
        *,
        store: Store | None = None,
        executor: Executor | None = None,
        spec: str | None = None,
        watch: Watch | None = None,
        on_request: Callable[[Work, Sequence[str]], None] | None = None,
        memory: MemoryCache | None = None,
    ) -> None:
        self.work = work
        self.diagnostics: list[str] = []  # sorted keys of measurements
        self.computed = 0  # cells
        self._spent: dict[str, tuple[Stage, Spent]] = {}  # by key of the cell
        self._storing = 0.0  # seconds
        self._store = store
        self._executor = executor or Serial()
        self._spec = spec
        self._watch = watch
        self._on_request = on_request
        self._memory = MemoryCache() if memory is None else memory

    def attacks(self, plan: Plan, cells: Sequence[AttackCell]) -> Sequence[Episode]:
        """The results of attack cells, in order. Each is read when it is used."""
        added = plan.choices[len(self.work.plan.choices) :]
        if added:
            added_names = names(choice.name for choice in added)
            text = f"{count(len(added), 'further attack')}: {added_names}."
            report_stage(self._watch, Stage.REMEDY, text)
            self.work = self.work.for_plan(plan)
            self._requested()
        cache = self._cache(self._store)
        keys = [self.work.keys[cell] for cell in cells]
        wanted = dict(zip(keys, cells, strict=True))
        missing = {key: cell for key, cell in wanted.items() if not cache.has(key)}
        if not isinstance(self._executor, Serial):
            missing = _longest_first(plan, missing)
        if self._watch:
            self._watch.begin(self.work, list(missing.values()))
        to_compute = f"{count_of(len(missing), len(cells), 'cell')} to compute."
        report_stage(self._watch, Stage.REMEDY if added else Stage.ATTACK, to_compute)
        self._fill(cache, missing)
        planned = len(self.work.plan.adversaries) - len(self.work.remedies)
        for key, (_, number) in wanted.items():
            stage = Stage.ATTACK if number < planned else Stage.REMEDY
            self._spent[key] = (stage, cache.spent(key))
        return StoredResults(keys, cache.get)

    def measurements(
        self,
        plan: Plan,  # noqa: ARG002
        cells: Sequence[Measurement],
    ) -> Sequence[Values]:
        """The results of measurements, in order. Each is read when it is used."""
        store = None
        if self._store is not None:
            store = Store(self._store.folder / DIAGNOSTICS).opened()
        cache = self._cache(store)
        keys = []
        stages = []
        for cell in cells:
            keys.append(self.work.key(cell))
            stages.append(Stage.ATTACK if isinstance(cell, Recheck) else Stage.DIAGNOSE)
        self.diagnostics = sorted({*self.diagnostics, *keys})
        self._requested()
        missing = _Numbered(cells, {key: k for k, key in enumerate(keys) if not cache.has(key)})
        self._report(stages, len(missing))
        if self._watch and missing:
            self._watch.measure(missing.cells)
        self._fill(cache, missing)
        for key, stage in zip(keys, stages, strict=True):
            self._spent[key] = (stage, cache.spent(key))
        return StoredResults(keys, cache.values)

    def add_to(self, stopwatch: Stopwatch) -> None:
        """Add the time and the passes of all cells so far, and the time of storing them."""
        for stage, spent in self._spent.values():
            stopwatch.add(stage, spent)
        if self._store is not None:
            stopwatch.add(Stage.STORE, Spent(self._storing))

    def _requested(self) -> None:
        if self._on_request:
            self._on_request(self.work, self.diagnostics)

    def _report(self, stages: Sequence[Stage], missing: int) -> None:
        """Re-evaluations of worst points belong to the attack stage."""
        rechecks = Stage.DIAGNOSE not in stages
        stage = Stage.ATTACK if rechecks else Stage.DIAGNOSE
        what = "re-evaluation" if rechecks else "diagnostic"
        text = f"{count_of(missing, len(stages), what)}{' of worst points' if rechecks else ''}"
        report_stage(self._watch, stage, f"{text} to compute.")

    def _cache(self, store: Store | None) -> Cache:
        # A new one each time: it reads once how long cells took.
        return self._memory if store is None else DiskCache(store, self._watch)

    def _fill(self, cache: Cache, missing: Mapping[str, Cell]) -> None:
        self.computed += len(missing)
        fill(self.work, cache, missing, self._executor, self._spec, self._watch)
        if isinstance(cache, DiskCache):
            self._storing += cache.stored


def _longest_first(plan: Plan, cells: Mapping[str, AttackCell]) -> dict[str, AttackCell]:
    """The cells in the order of their passes, so that the last cells of all workers are short.

    Clean images stay first: a target that fails on them fails early.
    """
    draws = plan.job.threat.draws if plan.job.defense.random else 1
    costs = [adversary.first_stage_cost(draws) for adversary in plan.adversaries]
    passes = [math.inf if cost is None else cost.total for cost in costs]
    passes[CLEAN] = math.inf

    def order(entry: tuple[str, AttackCell]) -> tuple[float, bool]:
        number = entry[1][1]
        return -passes[number], number != CLEAN

    return dict(sorted(cells.items(), key=order))


class StoredResults(Sequence[T]):
    """The results of cells, read from the cache one by one."""

    def __init__(self, keys: Sequence[str], read: Callable[[str], T]) -> None:
        self._keys = keys
        self._read = read

    def __len__(self) -> int:
        return len(self._keys)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> StoredResults[T]: ...
    def __getitem__(self, index: int | slice) -> T | StoredResults[T]:
        if isinstance(index, slice):
            return StoredResults(self._keys[index], self._read)
        return self._read(self._keys[index])


class _Numbered(Mapping[str, Cell]):
    """Measurements by key, each taken from a sequence when it is used."""

    def __init__(self, cells: Sequence[Measurement], numbers: Mapping[str, int]) -> None:
        self._all = cells
        self._numbers = numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def __iter__(self) -> Iterator[str]:
        return iter(self._numbers)

    def __contains__(self, key: object) -> bool:
        return key in self._numbers  # the default takes the cell

    def __getitem__(self, key: str) -> Measurement:
        return self._all[self._numbers[key]]

    @property
    def cells(self) -> Sequence[Measurement]:
        """The measurements, in order."""
        places = [*self._numbers.values()]
        return LazyCells(lambda k: self._all[places[k]], len(places))
