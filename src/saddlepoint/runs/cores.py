"""How many processes an audit may use, and whether they save time."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import time
from pathlib import Path

import torch

from saddlepoint.audits import Plan
from saddlepoint.audits.cells import Job
from saddlepoint.audits.planning.audit_cost import calls_per_pass
from saddlepoint.audits.profile import Spent, Stage
from saddlepoint.defenses import BlackBox, Context
from saddlepoint.defenses.wrapper import innermost
from saddlepoint.rng import Keys
from saddlepoint.runs.global_state import kept_globals

# With as many attack cells per audit, or one per core, processes use the cores better than threads.
_ENOUGH_CELLS = 8
_TRIAL_ROWS = 64
_BACKWARD = 1.5  # mean cost of forward and backward passes, relative to a forward pass


def available_cores() -> int:
    """Cores that this process may use.

    The affinity of the process and the limit of its container count, and so does the number of
    torch threads, which `OMP_NUM_THREADS` and `torch.set_num_threads` limit.
    """
    if sys.platform == "linux":
        affinity = len(os.sched_getaffinity(0))
    else:
        affinity = os.cpu_count() or 1
    return max(min(affinity, _container_limit(affinity), torch.get_num_threads()), 1)


def _container_limit(most: int, limits: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Cores that the container of this process may use, at most `most`."""
    try:
        quota, period = limits.read_text().split()
        return min(max(int(quota) // int(period), 1), most)
    except (OSError, ValueError):  # there is no file, or the quota is "max"
        return most


def inside_other_workers() -> bool:
    """Whether this process is one of several that share the cores, or one thread of several.

    It is in a worker of pytest-xdist, of a data loader, of Ray, of torch.distributed, or of any
    other pool of `multiprocessing`.
    """
    ray = sys.modules.get("ray")
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    return (
        multiprocessing.parent_process() is not None
        or "PYTEST_XDIST_WORKER" in os.environ
        or threading.current_thread() is not threading.main_thread()
        or (ray is not None and ray.is_initialized())
        or distributed
    )


def why_not_copied(job: Job) -> str:
    """Why no copy of this process can run the target, as part of a sentence; empty: it can."""
    if sys.platform != "linux":
        return "only Linux can share a model in memory between processes"
    if job.x.device.type != "cpu":
        return f"the target is on {job.x.device}, which processes cannot share"
    if _has_accelerator():
        return (
            "processes cannot share a model in memory where torch can use a GPU; "
            "CUDA_VISIBLE_DEVICES='' hides it"
        )
    if isinstance(innermost(job.defense), BlackBox):
        return "the target is a callable, which may have threads or connections of its own"
    return ""


def _has_accelerator() -> bool:
    """Whether gradients have started threads for devices, which a copy does not have."""
    found = getattr(torch, "accelerator", torch.cuda)  # torch.accelerator: since 2.6
    return bool(found.is_available())


def default_threads(plan: Plan) -> int | None:
    """Torch threads per cell of a model in memory; None: the number that torch uses.

    Another number changes the rounding of the results. The number therefore follows from the cores
    and from the plan and is not measured, so that all runs on a machine have the same bytes. It is
    one if the cells can be computed by processes and there are enough of them.
    """
    attacks = len(plan.cells) - len(plan.job.groups)  # without the clean images
    enough = attacks >= min(available_cores(), _ENOUGH_CELLS)
    return 1 if enough and not inside_other_workers() and not why_not_copied(plan.job) else None


def expected_seconds(plan: Plan) -> float:
    """About how long the planned attacks take in one process.

    The passes are those that the plan makes on every image. The time of a pass is that of probing,
    which is too long; if the result is more than a few seconds, a forward pass is measured.
    """
    job = plan.job
    draws = job.threat.draws if job.defense.random else 1
    costs = [choice.adversary.first_stage_cost(draws) for choice in plan.choices]
    passes = sum(cost.total for cost in costs if cost is not None)
    passes *= len(job.x) * calls_per_pass(job.defense)
    probe = plan.preparation.get(Stage.PROBE, Spent())
    probed = probe.passes.forward + probe.passes.backward
    rough = passes * probe.seconds / probed if probed else float("inf")
    return min(rough, passes * _BACKWARD * _forward_seconds(job)) if rough > 1.0 else rough


def _forward_seconds(job: Job) -> float:
    """Seconds per image of a forward pass."""
    x = job.x[: min(_TRIAL_ROWS, job.batch_size)]
    context = Context(Keys.of(0, torch.arange(len(x), device=x.device)))
    found = []
    with kept_globals(), torch.no_grad():
        torch.set_num_threads(1)
        for _ in range(2):
            started = time.perf_counter()
            job.defense.respond(x, context)
            found.append(time.perf_counter() - started)
    return min(found) / len(x)


def processes_in_memory() -> int:
    """How many processes of twice the size of this one there is memory for."""
    import resource

    if sys.platform != "linux":
        return sys.maxsize
    largest = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes
    return max(min(_free_memory(), _container_memory()) // (2 * largest), 1)


def _free_memory() -> int:
    """Bytes that new processes may use."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))


def _container_memory(folder: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes that the container of this process may still use."""
    try:
        limit = int((folder / "memory.max").read_text())
        return limit - int((folder / "memory.current").read_text())
    except (OSError, ValueError):  # there is no file, or the limit is "max"
        return sys.maxsize
