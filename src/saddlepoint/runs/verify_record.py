"""Checks of audit.json, run.json, spec.toml and the diagnostics, all of them derived again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor

from saddlepoint.audits import Audit, Plan, collect
from saddlepoint.audits.cells import AttackCell, Measurement, Values
from saddlepoint.audits.conclude import conclude
from saddlepoint.audits.record_fields import read_record
from saddlepoint.audits.verdict import Check
from saddlepoint.evaluation import Episode
from saddlepoint.phrases import count
from saddlepoint.reading import ReadError, read_bytes, shown
from saddlepoint.runs.compare import differences, listed, plain
from saddlepoint.runs.execution import StoredResults
from saddlepoint.runs.own_files import DIAGNOSTICS
from saddlepoint.runs.request import request_of
from saddlepoint.runs.spec import RunSpec, write
from saddlepoint.runs.store import SCHEMA, Store, StoreError, identity
from saddlepoint.runs.verify_points import cell_points, row_check
from saddlepoint.runs.work import Work, torch_threads

NOT_VERIFIABLE = {  # fields that nothing in a run determines, and why
    "audit.json, seconds": "the time that an audit took cannot be measured again",
    "audit.json, stages": "time and passes depend on where and how often the run was started",
    "audit.json, versions.python": "nothing depends on the version of Python",
    "ledger.jsonl": "time stamps; the times of cells are compared with the rows of audit.json",
    "live.html": "a page about progress, which is not part of the result",
}
_TIMES = ("seconds",)  # tensors of measurements that are never equal twice
_ALIKE = 5.0  # factor by which two measurements of the same ratio of times may differ
_SHORT = 0.005  # seconds; a shorter prediction is never called expensive (`Cost.expensive`)
_CLOSE = 1e-4  # tolerance for measured numbers on another machine
_TENSORS = ("correct", "answered")
_EXAMPLES = ("margin", "size", "smallest", "forward", "backward", "verified")


class OtherRemediesError(ValueError):
    """The cells lead to other remedies than those that were run."""


class StoredCells:
    """An `Execution` that reads all cells of a run, and computes measurements again to compare.

    `problems` are measurements with other results than stored.
    """

    def __init__(self, work: Work, store: Store, episodes: Mapping[str, Episode]) -> None:
        self.work = work
        self.diagnostics: set[str] = set()
        self.problems: list[str] = []
        self._store = Store(store.folder / DIAGNOSTICS)
        self._episodes = episodes
        events = [event for event in store.events() if event["event"] == "cell"]
        self._seconds = {event["key"]: event["seconds"] for event in events}

    def attacks(self, plan: Plan, cells: Sequence[AttackCell]) -> Sequence[Episode]:
        """The stored results of attack cells, with the times of the ledger."""
        if len(plan.choices) > len(self.work.plan.choices):
            self.work = self.work.for_plan(plan)
        keys = [self.work.keys[cell] for cell in cells]
        if not set(keys) <= self._episodes.keys():
            raise OtherRemediesError("the cells lead to other remedies than those that were run.")
        return StoredResults(keys, self._episode)

    def _episode(self, key: str) -> Episode:
        return replace(self._episodes[key], seconds=self._seconds.get(key, 0.0))

    def measurements(self, plan: Plan, cells: Sequence[Measurement]) -> Sequence[Values]:
        """The stored results of measurements; computed ones where none is stored."""
        return [self._measurement(plan, cell) for cell in cells]

    def _measurement(self, plan: Plan, cell: Measurement) -> Values:
        key = self.work.key(cell)
        self.diagnostics.add(key)
        again = cell.compute(plan.job)
        try:
            stored = self._store.values(key)
            name = self._store.record(key).get("measurement")
        except StoreError as error:
            self.problems.append(f"{cell.name}: {str(error).rstrip('.')}")
            return again
        place = f"{DIAGNOSTICS}/cells/{key[:12]}…"
        if name != cell.name:
            self.problems.append(
                f"{place}, measurement: recorded {shown(name)}, recomputed {shown(cell.name)}"
            )
        wrong = _other_values(stored, again)
        if wrong:
            self.problems.append(f"{place} ({cell.name}), {wrong}")
        # Tensors with other names or shapes cannot be used.
        return again if wrong else stored


def _other_values(stored: Values, again: Values) -> str:
    """What differs between two results of a measurement, as text; empty if nothing does."""
    if stored.keys() != again.keys():
        return f"tensors: recorded {sorted(stored)}, recomputed {sorted(again)}"
    for name, value in again.items():
        other = stored[name]
        if other.shape != value.shape or other.dtype != value.dtype:
            return f"{name}: recorded {list(other.shape)}, recomputed {list(value.shape)}"
        alike = _alike_times(other, value) if name in _TIMES else _close(other, value)
        if not alike:
            return f"{name}: recorded {_few(other)}, recomputed {_few(value)}"
    return ""


def _alike_times(stored: Tensor, again: Tensor) -> bool:
    """Whether two ratios of times agree: machines differ in speed, ratios not by much."""
    if len(stored) != 2 or not bool((stored > 0).all()):
        return False
    if max(float(stored[0]), float(again[0])) < _SHORT:
        return True
    ratio = float((stored[0] / stored[1]) / (again[0] / again[1]))
    return 1 / _ALIKE < ratio < _ALIKE


def _close(stored: Tensor, again: Tensor) -> bool:
    if not again.is_floating_point():
        return torch.equal(stored, again)
    return torch.allclose(stored, again, rtol=_CLOSE, atol=_CLOSE, equal_nan=True)


def _few(values: Tensor) -> str:
    return shown(values.flatten()[:4].tolist())


def derived_checks(
    work: Work,
    audit: Audit,
    store: Store,
    episodes: Mapping[str, Episode],
    run: dict[str, Any],
    spec: RunSpec,
) -> Iterator[Check]:
    """Everything that follows from the cells, against what is stored."""
    execution = StoredCells(work, store, episodes)
    try:
        with torch_threads(work.threads):
            derived = conclude(collect(work.plan, execution), audit.seconds)
    except OtherRemediesError as error:
        yield Check("remedies", False, str(error))
        return
    if set(execution.work.keys.values()) != set(run["cells"]):
        yield Check(
            "remedies",
            False,
            "run.json names cells that neither its specification nor the symptoms call for.",
        )
        return
    yield cell_points(execution.work, store, episodes)
    points = audit.worst_points.to(derived.worst_points)
    moved = ~(derived.worst_points == points).flatten(1).all(1)
    yield row_check("points", moved, "equal the cells", "differ from the cells")
    yield _diagnostics_check(execution)
    yield _request_check(execution, run, spec)
    yield _spec_file_check(store, spec)
    yield _record_check(store, audit, derived, run)


def _diagnostics_check(execution: StoredCells) -> Check:
    found = count(len(execution.diagnostics), "measurement")
    if execution.problems:
        return Check("diagnostics", False, f"{'; '.join(execution.problems[:3])}.")
    return Check("diagnostics", True, f"{found} gave the stored results again.")


def _request_check(execution: StoredCells, run: dict[str, Any], spec: RunSpec) -> Check:
    expected = request_of(execution.work, spec, sorted(execution.diagnostics))
    expected |= {"schema": SCHEMA, "versions": run["versions"]}
    found = list(differences(run, plain(expected)))
    if found:
        return Check("request", False, listed("run.json", found))
    return Check("request", True, "run.json follows from its specification.")


def _spec_file_check(store: Store, spec: RunSpec) -> Check:
    try:
        lines = read_bytes(store.folder / "spec.toml").decode().splitlines()
    except (OSError, ReadError, UnicodeDecodeError) as error:
        return Check("specification", False, f"spec.toml cannot be read: {error}.")
    expected = write(spec).splitlines()
    for number, (found, wanted) in enumerate(zip_longest(lines, expected, fillvalue=""), 1):
        if found != wanted:
            text = f"spec.toml, line {number}: recorded {shown(found)}, recomputed {shown(wanted)}"
            return Check("specification", False, f"{text}.")
    return Check("specification", True, "spec.toml is the specification of run.json.")


def _record_check(store: Store, audit: Audit, derived: Audit, run: dict[str, Any]) -> Check:
    """Whether all fields of audit.json and all tensors follow from the cells."""
    recorded = plain(read_record(store.folder))
    versions = {**run["versions"], "python": recorded["versions"].get("python")}
    derived = replace(derived, run=identity(run), versions=versions, stages=audit.stages)
    expected = plain(derived.record())
    found = list(differences(recorded, expected))
    for name in _TENSORS:
        found += _other_rows(name, getattr(audit, name), getattr(derived, name))
    for name in _EXAMPLES:
        found += _other_rows(name, getattr(audit.examples, name), getattr(derived.examples, name))
    found += _other_rows("rejection_scores", audit.rejection_scores, derived.rejection_scores)
    if found:
        return Check("record", False, listed("audit.json", found))
    return Check("record", True, "all fields of audit.json follow from the cells.")


def _other_rows(name: str, recorded: Tensor, expected: Tensor) -> Iterator[tuple[str, Any, Any]]:
    """The first differing entry of a tensor of points.safetensors."""
    if recorded.shape != expected.shape:
        yield f"{name} of points.safetensors", list(recorded.shape), list(expected.shape)
        return
    same = (recorded == expected) | (recorded.isnan() & expected.isnan())
    if not same.all():
        place = tuple((~same).nonzero()[0].tolist())
        field = f"{name}{list(place)} of points.safetensors"
        yield field, recorded[place].item(), expected[place].item()
