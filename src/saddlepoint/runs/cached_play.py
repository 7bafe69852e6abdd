"""Episodes that are kept: an adversary that was played on the same images before is not played again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from saddlepoint.attacks.spaces import Ball
from saddlepoint.audits.cells import Job
from saddlepoint.audits.plan import Plan
from saddlepoint.defenses import Answer, Defense
from saddlepoint.evaluation import Adversary, Episode, Threat
from saddlepoint.evaluation.referee import RunAdversaries
from saddlepoint.runs.cache import DiskCache, Memory, Watch, fill
from saddlepoint.runs.executors import Serial
from saddlepoint.runs.store import Store
from saddlepoint.runs.work import Work


def kept(
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
) -> RunAdversaries:
    """A way to play adversaries against a defense whose finished cells are kept in the folder `out`, and found there again.

    One adversary on one batch is a cell, named by all that it depends on. Several processes may share the folder.
    """
    threat = threat if isinstance(threat, Threat) else Threat(threat)
    job = Job(defense, x.detach(), y.long(), threat, seed, batch_size, answers)
    store = None if out is None else Store(Path(out)).opened()
    memory = Memory()

    def send(adversaries: Sequence[Adversary]) -> list[Episode]:
        shelf = (
            memory if store is None else DiskCache(store, watch)
        )  # a new one each time: it reads once how long cells took
        work = Work.of(
            Plan(name or type(defense).__name__, "standard", job, tuple(adversaries), ()),
            threads=threads,
        )
        missing = [cell for cell in work.plan.cells if not shelf.has(work.keys[cell])]
        if watch:
            watch.begin(work, missing)
        fill(work, shelf, missing, Serial(), None, watch)
        return [
            replace(
                Episode.joined([shelf.get(work.keys[g, a]) for g in range(len(job.groups))]),
                adversary=adversary.name,
            )
            for a, adversary in enumerate(adversaries)
        ]

    return send
