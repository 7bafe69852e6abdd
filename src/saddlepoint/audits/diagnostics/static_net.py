"""Diagnostics of the static net inside a defense, and of the cost of a prediction."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from saddlepoint.attacks.losses import misclassified
from saddlepoint.audits.cells import Job, Measurement, Values
from saddlepoint.audits.target.hooks import count_calls
from saddlepoint.audits.verdict import Cost
from saddlepoint.defenses import Context
from saddlepoint.rng import Keys

_QUICK = 1.0  # seconds: a faster prediction is timed three times; one that adapts may take minutes


@dataclass(frozen=True)
class StaticOnPoints(Measurement):
    """The static net on clean images and on the worst of all points proposed for a group."""

    rows: Tensor  # [M]
    points: tuple[Tensor, ...]  # one [M, ...] per adversary
    at_once: int  # rows that fit into memory

    @property
    def name(self) -> str:
        return "static net on all points"

    def compute(self, job: Job) -> Values:
        y = job.y[self.rows]
        with torch.no_grad():
            clean = misclassified(self._logits(job, job.x[self.rows]), y)
            wrong = [misclassified(self._logits(job, points), y) for points in self.points]
        return {
            "clean": 1.0 - clean.double().cpu(),
            "robust": 1.0 - torch.stack(wrong).any(0).double().cpu(),
        }

    def _logits(self, job: Job, points: Tensor) -> Tensor:
        assert job.defense.static is not None, "measured only where there is a static net"
        parts = torch.split(points.to(job.x.device), self.at_once)
        return torch.cat([job.defense.static(part) for part in parts])


@dataclass(frozen=True)
class PredictionCost(Measurement):
    """Calls and seconds of one prediction of a defense, beside one of its static net."""

    rows: Tensor

    @property
    def name(self) -> str:
        return "cost of a prediction"

    def compute(self, job: Job) -> Values:
        static = job.defense.static
        assert static is not None, "measured only where there is a static net"
        x = job.x[self.rows]
        keys = Keys.of(job.seed, self.rows)

        def predict() -> object:
            return job.defense.respond(x, Context(keys, keep=job.defense.reads))

        # The verdict must not depend on other programs: on the CPU, count CPU time.
        on_cpu = x.device.type == "cpu"
        seconds = partial(_seconds, clock=time.process_time if on_cpu else time.perf_counter)
        with count_calls(static) as count:
            whole = seconds(predict, 1)
        if whole < _QUICK:
            whole = seconds(predict, 3)
        bare = seconds(lambda: static(x), 3)
        calls = torch.tensor([count.rows, count.with_gradients], dtype=torch.float64)
        return {
            "calls": calls / len(x),
            "seconds": torch.tensor([whole, bare], dtype=torch.float64),
        }


def cost_of(values: Values) -> Cost:
    """The cost measured by `PredictionCost`."""
    calls, graded = values["calls"].tolist()
    seconds, static_seconds = values["seconds"].tolist()
    return Cost(calls, graded, seconds, static_seconds)


def _seconds(call: Callable[[], object], times: int, clock: Callable[[], float]) -> float:
    """The shortest of several timings: other programs only make them longer."""
    timings = []
    with torch.no_grad():
        for _ in range(times):
            started = clock()
            call()
            timings.append(clock() - started)
    return max(min(timings), 1e-9)
