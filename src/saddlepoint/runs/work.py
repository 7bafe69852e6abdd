"""From a specification to cells, on whichever machine they are computed."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache

import torch

from saddlepoint.audits import AuditRequest, Plan, prepare
from saddlepoint.audits.cells import AttackCell, Measurement, is_out_of_memory
from saddlepoint.audits.planning.choice import Choice
from saddlepoint.audits.target.admission import placed
from saddlepoint.data import load_data
from saddlepoint.defenses import OutputError
from saddlepoint.describe import describe
from saddlepoint.locate import describe_error, raised_outside
from saddlepoint.passes import count_passes
from saddlepoint.runs.attack_specs import build
from saddlepoint.runs.command import command
from saddlepoint.runs.global_state import kept_globals
from saddlepoint.runs.hashing import cell_keys, measurement_key, target_digest
from saddlepoint.runs.packed_cell import PackedCell
from saddlepoint.runs.spec import RunSpec
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
            with torch_threads(self.threads), count_passes() as counter:
                values = cell.compute(job)
            seconds = time.perf_counter() - started
            packed = PackedCell.of_values(key, cell.name, values, seconds)
            return replace(packed, passes=counter.total)
        group, number = cell
        rows = job.groups[group]
        adversary = self.plan.adversaries[number]
        with torch_threads(self.threads), count_passes() as counter:
            episode = job.play(adversary, rows)
        about = {
            "group": group,
            "rows": [int(rows[0]), int(rows[-1])],
            "description": describe(adversary),
        }
        packed = PackedCell.of_episode(key, episode, about, time.perf_counter() - started)
        return replace(packed, passes=counter.total)

    @property
    def _thread_count(self) -> int:
        return self.threads or torch.get_num_threads()


@dataclass(frozen=True)
class FailedCell:
    """A cell that has no result because of its target."""

    cell: Cell
    reason: str  # part of a sentence
    error: BaseException | None = None  # what the target raised in this process, if it did


def result_of(work: Work, cell: Cell) -> PackedCell | FailedCell:
    """The result of a cell, or why the target does not let it have one.

    Global settings that the target changes are restored.

    Raises:
        Exception: The error is one of this package.
    """
    try:
        with kept_globals():
            return work.compute(cell)
    except SystemExit as error:
        return FailedCell(cell, f"the target called sys.exit({error.code!r})", error)
    except Exception as error:
        if is_out_of_memory(error):
            return FailedCell(cell, str(error) or "memory ran out", error)
        if isinstance(error, OutputError):
            return FailedCell(cell, str(error), error)
        if not raised_outside(error):
            raise
        return FailedCell(cell, f"the target raised {describe_error(error)}", error)


def portable(result: PackedCell | FailedCell) -> PackedCell | FailedCell:
    """A result that can travel to another process: errors of a target may not be picklable."""
    return replace(result, error=None) if isinstance(result, FailedCell) else result


@lru_cache(maxsize=1)
def load(spec: RunSpec, *, allow_unusual: bool = False) -> Work:
    """The work of a specification. It is cached, since a worker computes many of its cells.

    Args:
        spec: the specification.
        allow_unusual: also if the specification does not say so: its run was finished already.
    """
    with kept_globals():
        return _load(spec, allow_unusual=allow_unusual)


def _load(spec: RunSpec, *, allow_unusual: bool) -> Work:
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
        engine=spec.engine,
        data=data.name,
        classes=data.classes,
        command=command(spec),
    )
    # Measured traits decide which attacks run. All workers must measure the same, and sums are
    # rounded the same way only with the same number of threads.
    with torch_threads(spec.threads):
        plan = prepare(request)
    return Work.of(plan, source=source, threads=spec.threads)


def load_for(spec: str, cells: Sequence[Cell], remedies: Sequence[Choice] = ()) -> Work:
    """The work of a specification with some cells, in a worker.

    Args:
        spec: the specification as JSON, so that no tensor of the target travels to the worker.
        cells: the cells.
        remedies: remedies that were added to the plan of the specification.
    """
    return with_cells(load(RunSpec.model_validate_json(spec)), cells, remedies)


def with_cells(work: Work, cells: Sequence[Cell], remedies: Sequence[Choice]) -> Work:
    """The work with some cells, in a worker that has it without remedies.

    Args:
        work: the work of the plan.
        cells: the cells.
        remedies: remedies that were added to the plan.
    """
    added = [cell for cell in cells if not isinstance(cell, Measurement) and cell not in work.keys]
    return work.with_remedies(remedies, added) if added else work


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
