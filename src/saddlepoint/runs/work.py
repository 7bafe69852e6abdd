"""From a specification to cells, on whichever machine they are computed."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from saddlepoint.audits.cells import Job
from saddlepoint.audits.plan import Plan, plan
from saddlepoint.audits.planning.suite import Choice
from saddlepoint.audits.target.admission import placed
from saddlepoint.data import SOURCES, load_data
from saddlepoint.describe import describe
from saddlepoint.evaluation import Adversary
from saddlepoint.runs.attack_specs import NAMED, build, named
from saddlepoint.runs.hashing import cell_keys, target_digest, trial_key
from saddlepoint.runs.spec import DataSpec, RunSpec, ThreatSpec, parse
from saddlepoint.runs.store import Packed
from saddlepoint.runs.targets import resolve
from saddlepoint.runs.threat_specs import threat

Cell = tuple[int, int]  # (group of examples, adversary)
# What an option can say of a threat beside norm and radius, and that the state is hidden.
FLAGS = {
    name: f"--{name.replace('_', '-')}"
    for name in (
        "access",
        "randomness",
        "rounds",
        "order",
        "window",
        "controlled_fraction",
        "victims",
        "online_queries",
    )
}


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


def command(spec: RunSpec) -> str:
    """The command line that asks for the same run; what no option can say is in the copy of the specification beside the run."""
    words = [
        "saddlepoint",
        "audit",
        spec.target,
        "--data",
        spec.data.name,
        *_threat_words(spec.threat),
    ]
    said: dict[str, Any] = {
        "target": spec.target,
        "budget": spec.budget,
        "seed": spec.seed,
        "batch_size": spec.batch_size,
    }
    count = (
        DataSpec().n if spec.data.n is None and spec.data.name in SOURCES else spec.data.n
    )  # what is taken if --n is left out
    said |= {
        "data": {"name": spec.data.name, "n": count, "root": spec.data.root},
        "device": spec.device,
    }
    said |= {
        "threat": {name: getattr(spec.threat, name) for name in ("norm", "eps", *FLAGS)}
        | {"state_visible": spec.threat.state_visible}
    }
    if spec.data.n is not None:
        words += ["--n", str(spec.data.n)]
    words += [
        "--budget",
        spec.budget,
        "--seed",
        str(spec.seed),
        "--batch-size",
        str(spec.batch_size),
    ]
    words += ["--claim", f"{spec.claim:g}"] if spec.claim is not None else []
    said["claim"] = spec.claim
    words += [
        *(["--device", spec.device] if spec.device != "cpu" else []),
        *(["--root", spec.data.root] if spec.data.root else []),
    ]
    if spec.attacks and all(attack.name in NAMED for attack in spec.attacks):
        words += ["--attacks", ",".join(str(attack.name) for attack in spec.attacks)]
        said["attacks"] = [named(str(attack.name)).model_dump() for attack in spec.attacks]
    return shlex.join(words if parse(said) == spec else ["saddlepoint", "run", "spec.toml"])


def _threat_words(spec: ThreatSpec) -> list[str]:
    """Norm and radius always, the rest where it is not the default."""
    words = ["--norm", spec.norm, "--eps", spec.eps]
    usual = ThreatSpec()
    for name, flag in FLAGS.items():
        value = getattr(spec, name)
        if value != getattr(usual, name):
            words += [flag] if value is True else [flag, str(value)]
    return words if spec.state_visible else [*words, "--hidden-state"]


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
