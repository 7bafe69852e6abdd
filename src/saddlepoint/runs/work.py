"""From a specification to cells, on whichever machine they are computed."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache

import torch

from saddlepoint.audits import AuditRequest, Plan, prepare
from saddlepoint.audits.cells import AttackCell, Measurement
from saddlepoint.audits.planning.choice import Choice
from saddlepoint.audits.target.admission import placed
from saddlepoint.data import load_data
from saddlepoint.describe import describe
from saddlepoint.runs.attack_specs import build
from saddlepoint.runs.command import command
from saddlepoint.runs.hashing import cell_keys, measurement_key, target_digest
from saddlepoint.runs.spec import RunSpec
from saddlepoint.runs.store import PackedCell
from saddlepoint.runs.targets import resolve
from saddlepoint.runs.threat_specs import threat

Cell = AttackCell | Measurement


@dataclass(frozen=True)
class Work:
    """A plan with the keys of its attack cells."""

    plan: Plan
    target: str  # hash of the target
    threads: int | None  # None: the number that torch uses
    keys: dict[AttackCell, str]
    remedies: tuple[Choice, ...] = ()  # the last adversaries of the plan, chosen by the audit

    @classmethod
    def of(cls, plan: Plan, *, source: str = "", threads: int | None = None) -> Work:
        """Hash the target and all cells of a plan.

        Args:
            plan: the plan.
            source: the source code of the target, if it is known.
            threads: torch threads per cell; None: the number that torch uses.
        """
        with torch_threads(threads):
            target = target_digest(plan, source)
        count = threads or torch.get_num_threads()
        return cls(plan, target, threads, cell_keys(plan, target, count, plan.cells))

    def with_remedies(
        self, remedies: Sequence[Choice], cells: Sequence[AttackCell] | None = None
    ) -> Work:
        """The work with remedies after all planned adversaries.

        Args:
            remedies: the remedies.
            cells: the only new cells that need keys; default: all of them.
        """
        plan = self.plan.with_remedies(remedies)
        new = [cell for cell in plan.cells if cell not in self.keys] if cells is None else cells
        keys = cell_keys(plan, self.target, self._thread_count, new)
        every = (*self.remedies, *remedies)
        return replace(self, plan=plan, keys={**self.keys, **keys}, remedies=every)

    def for_plan(self, plan: Plan) -> Work:
        """The work of a plan that may have more remedies than this one."""
        return self.with_remedies(plan.choices[len(self.plan.choices) :])

    def key(self, cell: Cell) -> str:
        """The key of a cell."""
        if isinstance(cell, Measurement):
            return measurement_key(self.plan.job, cell, self.target, self._thread_count)
        return self.keys[cell]

    def compute(self, cell: Cell) -> PackedCell:
        """The result of a cell as bytes. The time it took is not part of them."""
        key = self.key(cell)
        job = self.plan.job
        started = time.perf_counter()
        if isinstance(cell, Measurement):
            with torch_threads(self.threads):
                values = cell.compute(job)
            seconds = time.perf_counter() - started
            return PackedCell.of_values(key, cell.name, values, seconds)
        group, number = cell
        rows = job.groups[group]
        adversary = self.plan.adversaries[number]
        with torch_threads(self.threads):
            episode = job.play(adversary, rows)
        about = {
            "group": group,
            "rows": [int(rows[0]), int(rows[-1])],
            "description": describe(adversary),
        }
        return PackedCell.of_episode(key, episode, about, time.perf_counter() - started)

    @property
    def _thread_count(self) -> int:
        return self.threads or torch.get_num_threads()


@lru_cache(maxsize=1)
def load(spec: RunSpec, *, allow_unusual: bool = False) -> Work:
    """The work of a specification. It is cached, since a worker computes many of its cells.

    Args:
        spec: the specification.
        allow_unusual: also if the specification does not say so: its run was finished already.
    """
    data = load_data(spec.data.name, split=spec.data.split, n=spec.data.n, root=spec.data.root)
    target, source = resolve(spec.target)
    request = AuditRequest(
        placed(target, spec.device),
        data.x.to(spec.device),
        data.y.to(spec.device),
        threat(spec.threat),
        budget=spec.budget,
        adversaries=tuple(build(attack) for attack in spec.attacks),
        seed=spec.seed,
        batch_size=spec.batch_size,
        name=spec.target,
        claim=spec.claim,
        allow_unusual=spec.allow_unusual or allow_unusual,
        data=data.name,
        classes=data.classes,
        command=command(spec),
    )
    # Measured traits decide which attacks run. All workers must measure the same, and sums are
    # rounded the same way only with the same number of threads.
    with torch_threads(spec.threads):
        plan = prepare(request)
    return Work.of(plan, source=source, threads=spec.threads)


def compute(spec: str, cell: Cell, remedies: Sequence[Choice] = ()) -> PackedCell:
    """Compute a cell in a worker.

    Args:
        spec: the specification as JSON, so that no tensor of the target travels to the worker.
        cell: the cell.
        remedies: remedies that were added to the plan of the specification.
    """
    work = load(RunSpec.model_validate_json(spec))
    if isinstance(cell, Measurement) or cell in work.keys:
        return work.compute(cell)
    return work.with_remedies(remedies, [cell]).compute(cell)


@contextmanager
def torch_threads(count: int | None) -> Iterator[None]:
    """Run a block with this number of torch threads; None changes nothing."""
    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
