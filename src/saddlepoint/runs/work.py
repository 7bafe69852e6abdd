"""From a specification to cells, on whichever machine they are computed."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

from saddlepoint.audits.cells import Job
from saddlepoint.audits.plan import Plan, plan
from saddlepoint.audits.planning.suite import Choice
from saddlepoint.audits.target.admission import placed
from saddlepoint.data import load_data
from saddlepoint.describe import describe
from saddlepoint.evaluation import Adversary
from saddlepoint.runs.attack_specs import build
from saddlepoint.runs.command import command
from saddlepoint.runs.hashing import cell_keys, target_digest, trial_key
from saddlepoint.runs.spec import RunSpec
from saddlepoint.runs.store import Packed
from saddlepoint.runs.targets import resolve
from saddlepoint.runs.threat_specs import threat

Cell = tuple[int, int]  # (group of examples, adversary)


@dataclass(frozen=True)
class Work:
    """A plan whose cells have names."""

    plan: Plan
    target: str  # hash
    threads: int | None  # None: as many as torch uses
    keys: dict[Cell, str]
    remedies: tuple[
        Choice, ...
    ] = ()  # the last adversaries of the plan, which no specification tells of

    @classmethod
    def of(cls, plan: Plan, *, source: str = "", threads: int | None = None) -> Work:
        with torch_threads(threads):
            target = target_digest(plan, source)
        return cls(
            plan, target, threads, cell_keys(plan, target, threads or torch.get_num_threads())
        )

    def more(self, remedies: Sequence[Choice], cells: Sequence[Cell] | None = None) -> Work:
        """The work with remedies after all that was planned; with the names of these cells alone, where no others are asked for."""
        plan = self.plan.more(remedies)
        fresh = [cell for cell in plan.cells if cell not in self.keys] if cells is None else cells
        keys = cell_keys(plan, self.target, self.threads or torch.get_num_threads(), fresh)
        return replace(
            self, plan=plan, keys={**self.keys, **keys}, remedies=(*self.remedies, *remedies)
        )

    def compute(self, cell: Cell) -> Packed:
        """One cell as bytes. Time is not part of them."""
        group, adversary = cell
        rows = self.plan.job.groups[group]
        sent = self.plan.adversaries[adversary]
        started = time.perf_counter()
        with torch_threads(self.threads):
            episode = self.plan.job.play(sent, rows)
        about = {
            "group": group,
            "rows": [int(rows[0]), int(rows[-1])],
            "description": describe(sent),
        }
        return Packed.of(self.keys[cell], episode, about, time.perf_counter() - started)

    def trial(self, job: Job, adversary: Adversary, rows: Tensor) -> str:
        """The name of a small trial after the cells."""
        return trial_key(job, adversary, rows, self.target, self.threads or torch.get_num_threads())


@lru_cache(maxsize=1)
def load(spec: RunSpec) -> Work:
    """The work that a specification describes; kept, since a worker is asked for many cells of it."""
    data = load_data(spec.data.name, split=spec.data.split, n=spec.data.n, root=spec.data.root)
    target, source = resolve(spec.target)
    # What is measured decides who is sent, and every worker must come to the same: they add up alike only with as many threads.
    with torch_threads(spec.threads):
        planned = plan(
            placed(target, spec.device),
            data.x.to(spec.device),
            data.y.to(spec.device),
            threat=threat(spec.threat),
            budget=spec.budget,
            adversaries=[build(attack) for attack in spec.attacks],
            seed=spec.seed,
            batch_size=spec.batch_size,
            name=spec.target,
            claim=spec.claim,
        )
    named = replace(planned, data=data.name, classes=data.classes, command=command(spec))
    return Work.of(named, source=source, threads=spec.threads)


def compute(spec: str, cell: Cell, remedies: Sequence[Choice] = ()) -> Packed:
    """What a worker process runs: the spec as JSON, and what was added to its plan, so that no tensor travels to it."""
    work = load(RunSpec.model_validate_json(spec))
    return (work if cell in work.keys else work.more(remedies, [cell])).compute(cell)


@contextmanager
def torch_threads(count: int | None) -> Iterator[None]:
    """Torch with that many threads, here and for now."""
    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
