"""Audits that are computed cell by cell and may be stored and resumed."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from saddlepoint.audits import Audit, AuditRequest, collect, prepare
from saddlepoint.audits.conclude import conclude
from saddlepoint.audits.profile import CostEntry, Stage, Stopwatch
from saddlepoint.audits.record_fields import read_record
from saddlepoint.phrases import count
from saddlepoint.runs.automatic import Automatic
from saddlepoint.runs.cache import Watch, report_stage
from saddlepoint.runs.cores import default_threads
from saddlepoint.runs.execution import CachedExecution
from saddlepoint.runs.executors import Executor
from saddlepoint.runs.manifest import remove_manifest, write_manifest
from saddlepoint.runs.request import request_of
from saddlepoint.runs.spec import RunSpec, write
from saddlepoint.runs.store import REQUESTED, Store, identity
from saddlepoint.runs.work import Work, load, torch_threads


def run_request(
    request: AuditRequest,
    *,
    out: Path | None = None,
    watch: Watch | None = None,
    workers: int | None = None,
    threads: int | None = None,
) -> Audit:
    """The audit of a model in memory.

    Args:
        request: the request.
        out: folder in which it is stored and can be resumed.
        watch: follows progress.
        workers: number of processes; default: one per core, if they save time.
        threads: torch threads per cell; default: see `cores.default_threads`.
    """
    store = None if out is None else Store(out)
    _report_probe(watch, request.name)
    plan = prepare(request)
    work = Work.of(plan, threads=threads or default_threads(plan))
    _report_plan(watch, work)
    return run(work, store=store, executor=Automatic(workers), watch=watch)


def run_spec(
    spec: RunSpec, out: Path, *, executor: Executor | Automatic, watch: Watch | None = None
) -> Audit:
    """The audit of a specification, stored in the folder `out` with a copy of the specification."""
    _report_probe(watch, spec.target)
    work = load(spec)
    _report_plan(watch, work)
    return run(work, store=Store(out), executor=executor, spec=spec, watch=watch)


def _report_probe(watch: Watch | None, name: str) -> None:
    report_stage(watch, Stage.PROBE, f"checking {name} and measuring its properties.")


def _report_plan(watch: Watch | None, work: Work) -> None:
    names = ", ".join(choice.name for choice in work.plan.choices)
    report_stage(watch, Stage.PLAN, f"{count(len(work.plan.choices), 'attack')}: {names}.")


def run(
    work: Work,
    *,
    store: Store | None = None,
    executor: Executor | Automatic | None = None,
    spec: RunSpec | None = None,
    watch: Watch | None = None,
) -> Audit:
    """Compute missing cells through all stages, conclude, and save the record.

    Args:
        work: the prepared plan and its cells.
        store: where cells and record are stored; None: nowhere.
        executor: computes cells; default: this process.
        spec: the specification, if there is one.
        watch: follows progress.
    """
    started = time.perf_counter()
    stopwatch = Stopwatch(dict(work.plan.preparation))
    if isinstance(executor, Automatic):
        executor = executor.choose(work, _sayer(watch), has_spec=spec is not None)
    if store is not None:
        with stopwatch.measure(Stage.STORE):
            open_run(store, request_of(work, spec), watch)
            if spec is not None:
                store.write_file("spec.toml", write(spec).encode())

    def save_request(wanted: Work, diagnostics: Sequence[str]) -> None:
        if store is not None:
            store.write_run(request_of(wanted, spec, diagnostics))

    execution = CachedExecution(
        work,
        store=store,
        executor=executor,
        spec=spec.model_dump_json() if spec else None,
        watch=watch,
        on_request=save_request,
    )
    try:
        with torch_threads(work.threads):
            evidence = collect(work.plan, execution)
            if not execution.work.remedies:
                report_stage(watch, Stage.REMEDY, "no further attacks.")
            report_stage(watch, Stage.CONCLUDE, "computing accuracy, checklist and verdict.")
            with stopwatch.measure(Stage.CONCLUDE):
                result = conclude(evidence, time.perf_counter() - started)
            del evidence  # the outcomes of all attacks are not needed any more
            execution.add_to(stopwatch)
            result = replace(result, stages=stopwatch.entries(result.n))
    finally:
        if executor is not None:
            executor.close()
    if store is None:
        return result
    result = replace(
        result, run=identity(request_of(execution.work, spec)), folder=str(store.folder)
    )
    if not execution.computed:
        result = _with_recorded_times(result, store)
    result.save(store.folder)
    store.log(
        "concluded",
        run=result.run,
        robust_accuracy=result.robust_accuracy,
        seconds=result.seconds,
    )
    write_manifest(store, store.run())
    return result


def _with_recorded_times(result: Audit, store: Store) -> Audit:
    """The audit with the times of the stored record, if that is the record of the same request.

    A run whose cells were only read did not take less time than before.
    """
    try:
        recorded = read_record(store.folder)
    except (ValueError, OSError):
        return result
    if recorded["run"] != result.run:
        return result
    stages = tuple(CostEntry(**stage) for stage in recorded["stages"])
    return replace(result, seconds=recorded["seconds"], stages=stages)


def _sayer(watch: Watch | None) -> Callable[[str], None]:
    """Where messages of a run go: without a watch they are warnings of Python."""
    return warnings.warn if watch is None else watch.say


def open_run(store: Store, about: dict[str, Any], watch: Watch | None) -> dict[str, Any] | None:
    """Write the request into the folder, and return the request that was there before.

    Cells of another request stay and are found when it is repeated. Its record is replaced.

    Args:
        store: the folder of the run.
        about: the request: what run.json contains.
        watch: receives a message if the folder belonged to another request.
    """
    before = store.create(about)
    remove_manifest(store)
    name = about["target"]["name"]
    folder = str(Path.cwd())
    store.log(REQUESTED, run=identity(about), target=name, threat=about["threat"], folder=folder)
    if before is None or watch is None:
        return before
    if any(before.get(name) != about.get(name) for name in ("kind", "target", "threat")):
        what = "a game" if before.get("kind") == "game" else "an audit"
        space = before["threat"]["space"]
        watch.say(
            f"{store.folder} held {what} of {before['target']['name']} (p={space['p']}, radius "
            f"{space['radius']:g}). Its cells stay; its record and report are replaced. "
            "Use another --out to keep both."
        )
    return before
