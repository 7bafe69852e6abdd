"""The three evaluations of every model of `saddlepoint demo`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import as_completed
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import torch

from saddlepoint.api import audit
from saddlepoint.attacks.spaces import Linf
from saddlepoint.audits import Audit
from saddlepoint.audits.planning.budget import Budget
from saddlepoint.cli.demo_models import MODELS, DemoModel
from saddlepoint.data import load_data
from saddlepoint.defenses import Defense, Plain
from saddlepoint.evaluation import (
    Adversary,
    Cascade,
    Points,
    Threat,
    autoattack,
    evaluate,
    rand_suite,
)
from saddlepoint.runs.pool import process_pool

RADIUS = 0.15  # Linf, in units of the input
DRAWS = 20  # evaluations per image of a randomized defense


class Effort(StrEnum):
    """How long the suite of AutoAttack is; the value says it to the reader."""

    TINY = "1 target class, 3 steps, 5 queries of Square; 2 draws"
    SHORT = "3 target classes, 50 steps, 500 queries of Square; 10 draws"
    FULL = "9 target classes, 100 steps, 5000 queries of Square; 20 draws"

    @property
    def suite(self) -> str:
        """What the suite may be called: only the full one is AutoAttack."""
        return "AutoAttack" if self is Effort.FULL else "shortened AutoAttack"


# The order in which models are started: the slowest first, so that both cores stay busy.
_ORDER = ("purifier", "random", "early-exit", "adapted", "robust")


@dataclass(frozen=True)
class DemoResult:
    """The three numbers of one model, in [0, 1], and what the page shows beside them."""

    name: str
    title: str
    mistake: str
    why: str
    images: int
    clean: float
    authors: float  # robust accuracy in the authors' evaluation
    autoattack: float  # robust accuracy under our implementation of AutoAttack
    robust: float  # robust accuracy in the audit, an upper bound
    interval: tuple[float, float]  # 95 %, of the audit
    verdict: str
    seconds: float  # processor time of all three evaluations, on one core

    @property
    def lost(self) -> float:
        """Points between the authors' evaluation and the audit, in [-1, 1]."""
        return self.authors - self.robust

    def record(self) -> dict[str, Any]:
        """The result as plain values for JSON."""
        return asdict(self)


def run_all(
    folder: Path,
    n: int,
    budget: Budget,
    effort: Effort,
    names: Sequence[str] = (),
    *,
    workers: int | None = None,
    done: Callable[[DemoResult], None] | None = None,
) -> list[DemoResult]:
    """Evaluate all models, each in a process of its own.

    Args:
        folder: every model gets a folder with its audit in it.
        n: largest number of images.
        budget: of the audits.
        effort: of AutoAttack.
        names: of the models; default: all.
        workers: processes; default: one per core, at most one per model.
        done: called with each result when it is there.

    Returns:
        The results in the order of `MODELS`.

    Raises:
        ValueError: there is no model of a name.
    """
    results = {}
    chosen = _ordered(names or _ORDER)
    for result in _results(chosen, folder, n, budget, effort, workers or _cores()):
        results[result.name] = result
        if done is not None:
            done(result)
    return [results[model.name] for model in MODELS if model.name in results]


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _ordered(names: Sequence[str]) -> list[str]:
    """The names without repetitions, the slowest model first."""
    unknown = sorted(set(names) - set(_ORDER))
    if unknown:
        raise ValueError(f"the demo has the models {', '.join(_ORDER)}, got {', '.join(unknown)}.")
    return sorted(set(names), key=_ORDER.index)


def _results(
    names: Sequence[str], folder: Path, n: int, budget: Budget, effort: Effort, workers: int
) -> Iterator[DemoResult]:
    workers = min(workers, len(names))
    if workers == 1:
        for name in names:
            yield measure(name, folder, n, budget, effort)
        return
    with process_pool(workers) as pool:
        futures = [pool.submit(measure, name, folder, n, budget, effort) for name in names]
        for future in as_completed(futures):
            yield future.result()


def measure(name: str, folder: Path, n: int, budget: Budget, effort: Effort) -> DemoResult:
    """Evaluate one model as its authors would, by AutoAttack, and by an audit.

    Args:
        name: of the model, one of `MODELS`.
        folder: the audit is written to `folder / name`.
        n: largest number of images.
        budget: of the audit.
        effort: of AutoAttack.
    """
    torch.set_num_threads(1)  # tiny networks: a second thread costs more than it gains
    start = time.process_time()
    model = next(model for model in MODELS if model.name == name)
    target = model.build()
    defense = _as_defense(target)
    data = load_data("digits", n=n)
    threat = Threat(Linf(RADIUS), draws=DRAWS)
    forward = model.forward() if model.forward else defense
    authors = evaluate(defense, [model.authors()], *data, threat=threat)
    standard = evaluate(forward, [_suite(forward, effort)], *data, threat=threat)
    # The audit gets all points that are known: its number is never above that of an evaluation that
    # it is compared with, and it is not credible if their points are stronger than its own.
    known = [
        Points("points of the authors", authors.episodes[0].points),
        Points(f"points of {effort.suite}", standard.episodes[0].points),
    ]
    result = audit(
        target,
        *data,
        threat=threat,
        budget=budget,
        extra=known,
        out=folder / name,
        name=model.title,
    )
    return _result(
        model,
        result,
        float(authors.worst_case()[0]),
        float(standard.worst_case()[0]),
        time.process_time() - start,
    )


def _result(
    model: DemoModel, audited: Audit, authors: float, standard: float, seconds: float
) -> DemoResult:
    return DemoResult(
        model.name,
        model.title,
        model.mistake,
        model.why,
        audited.n,
        audited.clean_accuracy,
        authors,
        standard,
        audited.robust_accuracy,
        audited.interval[:2],
        str(audited.verdict),
        seconds,
    )


def _as_defense(target: Defense | torch.nn.Module) -> Defense:
    return target if isinstance(target, Defense) else Plain(target)


def _suite(defense: Defense, effort: Effort) -> Adversary:
    """AutoAttack for a defense: `rand` if it is randomized, else `standard`, on what is left."""
    if defense.random:
        suites = {
            Effort.TINY: rand_suite(steps=3, draws=2),
            Effort.SHORT: rand_suite(steps=50, draws=10),
            Effort.FULL: rand_suite(),
        }
    else:
        suites = {
            Effort.TINY: autoattack(steps=3, targets=1, queries=5),
            Effort.SHORT: autoattack(steps=50, targets=3, queries=500),
            Effort.FULL: autoattack(),
        }
    return Cascade("autoattack", suites[effort])
