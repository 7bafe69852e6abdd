"""Outcomes of adversaries that are cached: the same adversary on the same images runs once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from saddlepoint.attacks.spaces import Ball
from saddlepoint.audits import Plan
from saddlepoint.audits.cells import Job
from saddlepoint.defenses import Answer, Defense
from saddlepoint.evaluation import Adversary, Episode, Threat
from saddlepoint.runs.cache import MemoryCache, Watch
from saddlepoint.runs.execution import CachedExecution
from saddlepoint.runs.store import Store
from saddlepoint.runs.work import Work

RunAdversaries = Callable[[Sequence[Adversary]], list[Episode]]


def cached_play(
    defense: Defense,
    x: Tensor,
    y: Tensor,
    *,
    threat: Threat | Ball,
    answers: Mapping[str, Answer] | None = None,
    out: str | Path | None = None,
    name: str = "",
    seed: int = 0,
    batch_size: int = 128,
    threads: int | None = None,
    watch: Watch | None = None,
    keep: Callable[[Episode], Episode] | None = None,
) -> RunAdversaries:
    """A function that runs adversaries on a defense and caches each cell.

    One adversary on one batch is a cell, named by everything it depends on. Several processes may
    use the same folder.

    Args:
        defense: the defense.
        x: clean inputs, [N, ...].
        y: labels, [N].
        threat: the threat model, or its perturbation set.
        answers: columns that are scored; default: the defense's answer.
        out: folder of the cells; None: memory.
        name: of the target, for records; default: the class of the defense.
        seed: random seed.
        batch_size: rows per batch.
        threads: torch threads; None: the number that torch uses.
        watch: follows progress.
        keep: what is kept in memory of each episode; default: all of it.
    """
    threat = threat if isinstance(threat, Threat) else Threat(threat)
    job = Job(defense, x.detach(), y.long(), threat, seed, batch_size, answers)
    title = name or type(defense).__name__
    memory = MemoryCache()

    def run(adversaries: Sequence[Adversary]) -> list[Episode]:
        plan = Plan(title, "standard", job, tuple(adversaries))
        store = None if out is None else Store(Path(out)).opened()
        work = Work.of(plan, threads=threads)
        execution = CachedExecution(work, store=store, watch=watch, memory=memory)
        episodes = execution.attacks(plan, plan.cells)
        count = len(adversaries)
        joined = []
        for a, adversary in enumerate(adversaries):
            parts = map(keep, episodes[a::count]) if keep else episodes[a::count]
            joined.append(replace(Episode.joined([*parts]), adversary=adversary.name))
        return joined

    return run
