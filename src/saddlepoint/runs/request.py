"""The request of an audit, as it is written to run.json."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from saddlepoint.describe import describe
from saddlepoint.runs.spec import RunSpec
from saddlepoint.runs.work import Work


def request_of(work: Work, spec: RunSpec | None, diagnostics: Sequence[str] = ()) -> dict[str, Any]:
    """The request, as passed and with all defaults.

    Args:
        work: the plan with the keys of its attack cells.
        spec: the specification; None for a model in memory.
        diagnostics: the keys of the measurements.
    """
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
        "engine": asdict(job.engine),
        "cells": sorted(work.keys.values()),
        "diagnostics": list(diagnostics),
    }
