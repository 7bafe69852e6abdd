"""Overhead of Ray over local processes, for cells of a chosen length.

    python -m benchmarks.executors --seconds 60 --cells 4 --rounds 2 \\
        --out benchmarks/records/executors.json

A cell is PGD on one group of digits against a trained net. The forward pass of the net is padded
with matrix products, through which the gradient passes. The number of steps is chosen so that a
cell takes `--seconds` on one core. Both executors run the same specification with the same number
of workers, alternately, each into a new folder. The resulting cells are compared byte for byte. The
local Ray cluster is started before the measurement, as on a user's cluster; its start-up time is
reported separately.

There are two numbers, because machines are shared. `ratio` is the wall time of Ray over the wall
time of local processes; it is affected by other load on the machine. `outside` is the time of a run
that is not spent in its cells, wall - sum(cell seconds) / workers: starting workers, loading the
target in each, moving cells, computing the verdict. It hardly depends on the length of the cells.

Ray gives its workers a lower priority (niceness 15), so that their cells take longer on a busy
machine. This is a setting, not a cost; RAY_worker_niceness=0 disables it. Here both executors run
at the same priority unless `--niceness` is set.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import shutil
import statistics
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import ray
import torch
from torch import Tensor, nn

from saddlepoint.runs.executors import Executor, Processes
from saddlepoint.runs.ray import Ray
from saddlepoint.runs.runner import run_spec
from saddlepoint.runs.spec import AttackSpec, DataSpec, RunSpec, ThreatSpec
from saddlepoint.runs.store import Store
from saddlepoint.runs.work import load as load_work
from saddlepoint.zoo import load as load_model

GROUP = 16  # images per cell
WIDTH = 1024  # size of the padding's matrix products
DEPTH = 12  # number of the padding's matrix products


class SlowNet(nn.Module):
    """A trained net with additional computation that takes longer than the net itself."""

    def __init__(self) -> None:
        super().__init__()
        self.net = load_model("digits-pgd")
        generator = torch.Generator().manual_seed(0)
        self.register_buffer("first", torch.randn(64, WIDTH, generator=generator) / 8)
        self.register_buffer(
            "product", torch.randn(WIDTH, WIDTH, generator=generator) / math.sqrt(WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        h = x.flatten(1) @ self.first
        for _ in range(DEPTH):
            h = torch.tanh(h @ self.product)
        return self.net(x) + 1e-6 * h[:, :10]


def padded() -> nn.Module:
    """The target of the run specification."""
    return SlowNet().eval()


def steps_for(seconds: float) -> int:
    """The number of PGD steps that take this time on one core."""
    torch.set_num_threads(1)
    net = padded()
    trials = 20
    x = torch.rand(GROUP, 1, 8, 8, requires_grad=True)
    torch.autograd.grad(net(x).sum(), x)  # the first call is slower
    started = time.process_time()
    for _ in range(trials):
        torch.autograd.grad(net(x).sum(), x)
    return max(1, round(seconds * trials / (time.process_time() - started)))


def specification(cells: int, steps: int) -> RunSpec:
    """A run with `cells` long cells, and as many short ones of the clean images.

    The radius is so small that no image is misclassified and drops out early.
    """
    return RunSpec(
        target=f"{Path(__file__).resolve()}:padded",
        data=DataSpec(n=GROUP * cells),
        threat=ThreatSpec(eps="0.001"),
        attacks=(AttackSpec(kind="pgd", loss="ce", steps=steps),),
        batch_size=GROUP,
    )


def measure(spec: RunSpec, executor: Executor, workers: int, folder: Path) -> dict[str, Any]:
    """Times of one run into an empty folder."""
    load_before = os.getloadavg()[0]
    started = time.perf_counter()
    run_spec(spec, folder, executor=executor)
    wall = time.perf_counter() - started
    cells = [event["seconds"] for event in Store(folder).events() if event["event"] == "cell"]
    long = sorted(cells)[len(cells) // 2 :]
    return {
        "wall": round(wall, 2),
        "cells": [round(seconds, 2) for seconds in long],
        "outside": round(wall - sum(cells) / workers, 2),
        "load_before": round(load_before, 2),
    }


def content(folder: Path) -> dict[str, bytes]:
    """The cell files of a run."""
    return {path.name: path.read_bytes() for path in (folder / "cells").iterdir()}


def start_ray(arguments: argparse.Namespace) -> float:
    """Start a local Ray cluster and return the seconds it took."""
    started = time.perf_counter()
    os.environ["RAY_worker_niceness"] = str(arguments.niceness)  # noqa: SIM112
    # Like our executor, use 127.0.0.1 only.
    os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    ray.init(
        num_cpus=arguments.workers,
        include_dashboard=False,
        log_to_driver=False,
        _node_ip_address="127.0.0.1",
    )
    return time.perf_counter() - started


def run_rounds(spec: RunSpec, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Run both executors alternately."""
    executors: dict[str, Executor] = {"processes": Processes(arguments.workers), "ray": Ray(cpus=1)}
    rounds: list[dict[str, Any]] = []
    for number in range(arguments.rounds):
        place = Path(tempfile.mkdtemp())
        # Alternate which executor runs first.
        order = list(executors) if number % 2 == 0 else list(executors)[::-1]
        found = {
            name: measure(spec, executors[name], arguments.workers, place / name) for name in order
        }
        ratio = round(found["ray"]["wall"] / found["processes"]["wall"], 4)
        same_bytes = content(place / "ray") == content(place / "processes")
        rounds.append({**found, "ratio": ratio, "same_bytes": same_bytes})
        print(json.dumps(rounds[-1]), flush=True)
        shutil.rmtree(place)
    return rounds


def about(spec: RunSpec, arguments: argparse.Namespace) -> dict[str, Any]:
    """How the record was measured."""
    return {
        "command": f"python -m benchmarks.executors --seconds {arguments.seconds:g} "
        f"--cells {arguments.cells} --rounds {arguments.rounds} --workers {arguments.workers} "
        f"--niceness {arguments.niceness}",
        "cell": f"PGD, {spec.attacks[0].steps} steps, {GROUP} digits, one thread",
        "ratio": "wall time of Ray / wall time of local processes; the cluster was started before",
        "outside": "seconds of wall time - sum of cell seconds / workers",
        "load_before": "load average of the minute before; above `cores`, other processes were "
        "competing for the cores",
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "ray": version("ray"),
        },
        "cores": os.cpu_count(),
    }


def main() -> None:
    """Measure both executors and write the record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="time per cell on one core")
    parser.add_argument("--cells", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument(
        "--niceness", type=int, default=0, help="niceness of Ray's workers; Ray's default is 15"
    )
    parser.add_argument("--out", type=Path, default=Path("benchmarks/records/executors.json"))
    arguments = parser.parse_args()
    starting = start_ray(arguments)
    spec = specification(arguments.cells, steps_for(arguments.seconds))
    load_work(spec)  # cached by this process, so that the first run is not slower than the others
    rounds = run_rounds(spec, arguments)
    ray.shutdown()
    record = {
        "about": about(spec, arguments),
        "starting_ray_seconds": round(starting, 2),
        "rounds": rounds,
        "median": {
            "ratio": statistics.median(r["ratio"] for r in rounds),
            "outside_processes": statistics.median(r["processes"]["outside"] for r in rounds),
            "outside_ray": statistics.median(r["ray"]["outside"] for r in rounds),
        },
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record["median"]))


if __name__ == "__main__":
    main()
