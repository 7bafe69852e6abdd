"""The run: hand out the cells that are missing, keep what comes back, conclude."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from saddlepoint.attacks.spaces import Ball, Linf
from saddlepoint.audits.cells import Job
from saddlepoint.audits.diagnostics.trials import Play
from saddlepoint.audits.plan import conclude, plan
from saddlepoint.audits.planning.suite import Budget
from saddlepoint.audits.result import Audit
from saddlepoint.audits.target.admission import Target, placed
from saddlepoint.describe import describe
from saddlepoint.evaluation import Adversary, Episode, Threat
from saddlepoint.runs.cache import DiskCache, Memory, Watch, fill
from saddlepoint.runs.executors import Executor, Serial
from saddlepoint.runs.rounds import Finished, rounds
from saddlepoint.runs.spec import RunSpec, write
from saddlepoint.runs.store import Packed, Store, identity
from saddlepoint.runs.work import Work, load, torch_threads


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
    claim: float | None = None,
    watch: Watch | None = None,
) -> Audit:
    """How robust is the target on these images? An upper bound, with an interval, symptoms, and the points that show it.

    `target` is an nn.Module that maps pixels in [0, 1] to logits, a `Defense`, or any callable on batches (then only gradient-free
    attacks are possible). `budget` is "quick", "standard" or "thorough"; `adversaries` replace those that the budget would compose.
    `claim` is a robust accuracy to be tested, 0.62 for 62 %: a lower one makes the verdict *overstated*.
    With `out`, every finished piece is kept there, the same call goes on where it was stopped, and record and report are written.
    """
    if device is not None:
        x = x.to(device)
        y = y.to(device)
        target = placed(target, device)
    planned = plan(
        target, x, y, threat=threat, budget=budget, adversaries=adversaries, seed=seed, batch_size=batch_size, name=name,
        claim=claim,
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
    """Compute what is missing, try remedies for what it shows, conclude, and write record and report where there is a store."""
    started = time.perf_counter()
    memory = Memory()
    if store is not None:
        ask(store, _about(work, spec), watch)
        if spec is not None:
            store.keep("spec.toml", write(spec).encode())

    def finish(wanted: Work) -> Finished:
        shelf = (
            memory if store is None else DiskCache(store, watch)
        )  # a new one each time: it reads once how long cells took
        if store is not None and wanted.remedies:
            store.state(_about(wanted, spec))
        missing = [cell for cell in wanted.plan.cells if not shelf.has(wanted.keys[cell])]
        if watch:
            watch.begin(wanted, missing)
        fill(
            wanted,
            shelf,
            missing,
            executor or Serial(),
            spec.model_dump_json() if spec else None,
            watch,
        )
        return shelf.get

    played = rounds(work, finish, Job.play if store is None else _kept(work, store, watch))
    with torch_threads(work.threads):
        result = conclude(played.work.plan, played.evidence, time.perf_counter() - started)
    if store is not None:
        result = replace(result, run=identity(_about(played.work, spec)), folder=str(store.folder))
        result.to_html(result.save(store.folder) / "report.html")
        store.log(
            "concluded",
            run=result.run,
            robust_accuracy=result.robust_accuracy,
            seconds=result.seconds,
        )
    return result


def _kept(work: Work, store: Store, watch: Watch | None) -> Play:
    """Small trials that are found again when the same audit is asked for again: of a dear defense they take as long as attacks.

    They have a folder of their own: no accuracy rests on them, and whoever verifies a run plays them again.
    """
    shelf = DiskCache(Store(store.folder / "trials").opened(), watch)

    def play(job: Job, adversary: Adversary, rows: Tensor) -> Episode:
        key = work.trial(job, adversary, rows)
        with shelf.store.claim(
            key
        ):  # whoever else plays it does so in vain, and tidies nothing away meanwhile
            if not shelf.has(key):
                started = time.perf_counter()
                episode = job.play(adversary, rows)
                about = {"rows": rows.tolist(), "description": describe(adversary)}
                shelf.store.put(Packed.of(key, episode, about, time.perf_counter() - started))
            return shelf.get(key)

    return play


def ask(store: Store, about: dict[str, Any], watch: Watch | None) -> dict[str, Any] | None:
    """Write down what is asked for, and return what was asked for before.

    Cells of another request stay, and are found again when it is made again; its record goes.
    """
    held = store.create(about)
    store.log(
        "asked",
        run=identity(about),
        target=about["target"]["name"],
        threat=about["threat"],
        folder=str(Path.cwd()),
    )
    if (
        held
        and watch
        and any(held.get(name) != about.get(name) for name in ("kind", "target", "threat"))
    ):
        what = "a game" if held.get("kind") == "game" else "an audit"
        space = held["threat"]["space"]
        watch.say(
            f"{store.folder} held {what} of {held['target']['name']} (p={space['p']}, radius {space['radius']:g}). Its cells stay, "
            "its record and report are replaced by this one's. Use another --out to keep both."
        )
    return held


def _about(work: Work, spec: RunSpec | None) -> dict[str, Any]:
    """What was asked for: as passed, and with all defaults."""
    return {
        "passed": spec.model_dump(mode="json", exclude_unset=True) if spec else None,
        "spec": spec.model_dump(mode="json") if spec else None,
        "target": {"name": work.plan.name, "sha256": work.target},
        "threat": describe(work.plan.job.threat),
        "adversaries": [describe(a) for a in work.plan.adversaries],
        "reasons": {choice.name: choice.reason for choice in work.plan.choices},
        "seed": work.plan.job.seed,
        "batch_size": work.plan.job.batch_size,
        "device": str(work.plan.job.x.device),
        "unit": work.plan.job.defense.unit,
        "random": work.plan.job.defense.random,
        "examples": len(work.plan.job.x),
        "cells": sorted(work.keys.values()),
    }
