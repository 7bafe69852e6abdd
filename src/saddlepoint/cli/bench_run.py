"""The time of attacks relative to their passes, beside the installed peers.

The unit is the CPU time of a bare loop with as many forward and backward passes on the same images:
a ratio of 1 means no overhead. All attacks run alternately in one process, so that other load
affects all of them alike.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from saddlepoint.attacks.apgd import APGD
from saddlepoint.attacks.base import Attack
from saddlepoint.attacks.losses import cross_entropy
from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import Ball
from saddlepoint.defenses import Plain
from saddlepoint.engine import equal_form
from saddlepoint.evaluation import AttackContext, Direct, Threat

PEERS = ("torchattacks", "pyautoattack", "foolbox")
_STEP = 0.1  # length of a step of PGD, in radii


@dataclass(frozen=True)
class Ratio:
    """The time of an attack in units of a bare loop."""

    attack: str  # "PGD"
    library: str  # "saddlepoint", or the name of a peer
    median: float
    lowest: float
    highest: float


@dataclass(frozen=True)
class Job:
    """What is measured: a network, images and the length of the attacks."""

    net: nn.Module
    x: Tensor  # [N, ...]
    y: Tensor  # [N]
    space: Ball
    steps: int
    rounds: int


Run = Callable[[], object]


def measure(job: Job) -> Iterator[Ratio]:
    """The ratio of each attack, of this library and of the installed peers."""
    folded = equal_form(job.net, job.x[:16])
    attacks = {"PGD": PGD(job.steps, _STEP * job.space.radius), "APGD": APGD(job.steps)}
    for name, attack in attacks.items():
        runs: dict[str, Run] = {"saddlepoint": _ours(job, job.net, attack)}
        if folded.net is not job.net:
            runs["saddlepoint, folded"] = _ours(job, folded.net, attack)
        runs |= dict(_peers(job, name))
        for library, found in _alternately(job, runs).items():
            yield Ratio(name, library, statistics.median(found), min(found), max(found))


def _alternately(job: Job, runs: dict[str, Run]) -> dict[str, list[float]]:
    ratios: dict[str, list[float]] = {library: [] for library in runs}
    for run in runs.values():
        run()  # the first run loads libraries
    for _ in range(job.rounds):
        for library, run in runs.items():
            bare = _seconds(lambda: _bare_loop(job))
            ratios[library].append(_seconds(run) / bare)
    return ratios


def _seconds(run: Run) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


def _bare_loop(job: Job) -> None:
    """As many passes as an attack makes, and nothing else."""
    for _ in range(job.steps):
        x = job.x.clone().requires_grad_()
        loss = nn.functional.cross_entropy(job.net(x), job.y, reduction="sum")
        torch.autograd.grad(loss, x)
    with torch.no_grad():
        job.net(job.x)


def _ours(job: Job, net: nn.Module, attack: Attack[Any]) -> Run:
    direct = Direct("attack", attack, loss=cross_entropy)

    def run() -> None:
        context = AttackContext.open(Threat(job.space), torch.arange(len(job.x)), 0)
        direct.move(context, Plain(net), job.x, job.y)

    return run


def _peers(job: Job, attack: str) -> Iterator[tuple[str, Run]]:
    """The same attack of each peer that is installed and has it."""
    norm = {1: "L1", 2: "L2", math.inf: "Linf"}[job.space.p]
    makers = {
        "torchattacks": _torchattacks,
        "pyautoattack": _pyautoattack,
        "foolbox": _foolbox,
    }
    for name, maker in makers.items():
        if importlib.util.find_spec(name) is None:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run = maker(job, importlib.import_module(name), attack, norm, job.space.radius)
        if run is not None:
            yield name, run


def _torchattacks(job: Job, module: Any, attack: str, norm: str, radius: float) -> Run | None:
    if attack == "PGD" and norm in ("Linf", "L2"):
        kind = module.PGD if norm == "Linf" else module.PGDL2
        made = kind(job.net, eps=radius, alpha=_STEP * radius, steps=job.steps)
    elif attack == "APGD" and norm in ("Linf", "L2"):
        made = module.APGD(job.net, norm=norm, eps=radius, steps=job.steps, n_restarts=1)
    else:
        return None
    return lambda: made(job.x, job.y)


def _pyautoattack(job: Job, module: Any, attack: str, norm: str, radius: float) -> Run | None:
    if attack != "APGD":
        return None
    apgd = importlib.import_module(f"{module.__name__}.autopgd_base").APGDAttack
    made = apgd(job.net, n_iter=job.steps, norm=norm, eps=radius, n_restarts=1, seed=0)
    return lambda: made.perturb(job.x, job.y)


def _foolbox(job: Job, module: Any, attack: str, norm: str, radius: float) -> Run | None:
    if attack != "PGD":
        return None
    kind = {"Linf": "LinfPGD", "L2": "L2PGD", "L1": "L1ProjectedGradientDescentAttack"}[norm]
    made = getattr(module.attacks, kind)(steps=job.steps, rel_stepsize=_STEP)
    model = module.PyTorchModel(job.net, bounds=(0, 1), device=job.x.device)
    return lambda: made(model, job.x, job.y, epsilons=radius)
