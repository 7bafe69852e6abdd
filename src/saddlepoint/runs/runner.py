"""Audits that are computed cell by cell and may be stored and resumed."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from saddlepoint.audits import Audit, AuditRequest, collect, prepare
from saddlepoint.audits.conclude import conclude
from saddlepoint.describe import describe
from saddlepoint.runs.cache import Watch
from saddlepoint.runs.execution import CachedExecution
from saddlepoint.runs.executors import Executor
from saddlepoint.runs.spec import RunSpec, write
from saddlepoint.runs.store import Store, identity
from saddlepoint.runs.work import Work, load, torch_threads


def run_request(
    request: AuditRequest, *, out: Path | None = None, watch: Watch | None = None
) -> Audit:
    """The audit of a model in memory; with `out` it is stored there and can be resumed."""
    store = None if out is None else Store(out)
    return run(Work.of(prepare(request)), store=store, watch=watch)


def run_spec(spec: RunSpec, out: Path, *, executor: Executor, watch: Watch | None = None) -> Audit:
    """The audit of a specification, stored in the folder `out` with a copy of the specification."""
    return run(load(spec), store=Store(out), executor=executor, spec=spec, watch=watch)


def run(
    work: Work,
    *,
    store: Store | None = None,
    executor: Executor | None = None,
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
    if store is not None:
        open_run(store, _about(work, spec), watch)
        if spec is not None:
            store.keep("spec.toml", write(spec).encode())

    def save_request(wanted: Work) -> None:
        if store is not None:
            store.state(_about(wanted, spec))

    execution = CachedExecution(
        work,
        store=store,
        executor=executor,
        spec=spec.model_dump_json() if spec else None,
        watch=watch,
        on_remedies=save_request,
    )
    try:
        with torch_threads(work.threads):
            evidence = collect(work.plan, execution)
            result = conclude(evidence, time.perf_counter() - started)
    finally:
        if executor is not None:
            executor.close()
    if store is None:
        return result
    result = replace(result, run=identity(_about(execution.work, spec)), folder=str(store.folder))
    result.save(store.folder)
    store.log(
        "concluded",
        run=result.run,
        robust_accuracy=result.robust_accuracy,
        seconds=result.seconds,
    )
    return result


def open_run(store: Store, about: dict[str, Any], watch: Watch | None) -> dict[str, Any] | None:
    """Write the request into the folder, and return the request that was there before.

    Cells of another request stay and are found when it is repeated. Its record is replaced.
    """
    held = store.create(about)
    name = about["target"]["name"]
    folder = str(Path.cwd())
    store.log("asked", run=identity(about), target=name, threat=about["threat"], folder=folder)
    differs = held and any(held.get(k) != about.get(k) for k in ("kind", "target", "threat"))
    if held and watch and differs:
        what = "a game" if held.get("kind") == "game" else "an audit"
        space = held["threat"]["space"]
        watch.say(
            f"{store.folder} held {what} of {held['target']['name']} (p={space['p']}, radius "
            f"{space['radius']:g}). Its cells stay; its record and report are replaced. "
            "Use another --out to keep both."
        )
    return held


def _about(work: Work, spec: RunSpec | None) -> dict[str, Any]:
    """The request, as passed and with all defaults."""
    plan = work.plan
    job = plan.job
    return {
        "passed": spec.model_dump(mode="json", exclude_unset=True) if spec else None,
        "spec": spec.model_dump(mode="json") if spec else None,
        "target": {"name": plan.name, "sha256": work.target},
        "threat": describe(job.threat),
        "adversaries": [describe(adversary) for adversary in plan.adversaries],
        "reasons": {choice.name: choice.reason for choice in plan.choices},
        "seed": job.seed,
        "batch_size": job.batch_size,
        "device": str(job.x.device),
        "unit": job.defense.unit,
        "random": job.defense.random,
        "examples": len(job.x),
        "cells": sorted(work.keys.values()),
    }
