"""What Ray costs over local processes, on cells of a given length.

    python -m benchmarks.executors --seconds 60 --cells 4 --rounds 2 --out benchmarks/records/executors.json

A cell is PGD on one group of digits against a trained net whose forward is padded with matrix products that its gradient passes
through; the number of steps is chosen so that a cell takes `--seconds` of one core. Both executors run the same specification with
the same number of workers, in turns, each into a new folder; the cells they leave are compared byte for byte. A local Ray cluster
is started before the clock, as a user's cluster would be; its start is reported apart.

Two numbers, because machines are shared. `ratio`: wall time of Ray over wall time of processes, which also sees who else was
running. `outside`: the seconds of a run that are not its cells, wall - sum(cell seconds) / workers: starting workers, loading the
target in each, moving cells, the verdict. They hardly depend on the length of the cells.

Ray gives its workers a lower priority than others (niceness 15), so that on a busy machine their cells take longer; that is a
choice, not a cost, and RAY_worker_niceness=0 takes it back. Here both run at the same priority unless `--niceness` says otherwise.
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
from saddlepoint.runs.work import load as plan
from saddlepoint.zoo import load

GROUP = 16
WIDTH = 1024
DEPTH = 12  # images per cell; size and number of the padding's products


class Padded(nn.Module):
    """A trained net that also computes something as long as its neighbors would."""

    def __init__(self) -> None:
        super().__init__()
        self.net = load("digits-pgd")
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
    return Padded().eval()


def steps_for(seconds: float) -> int:
    """How many steps of PGD fill so much time of one core."""
    torch.set_num_threads(1)
    net = padded()
    trial = 20
    x = torch.rand(GROUP, 1, 8, 8, requires_grad=True)
    torch.autograd.grad(net(x).sum(), x)  # the first is slower
    started = time.process_time()
    for _ in range(trial):
        torch.autograd.grad(net(x).sum(), x)
    return max(1, round(seconds * trial / (time.process_time() - started)))


def specification(cells: int, steps: int) -> RunSpec:
    """`cells` long cells, and as many short ones of the clean images. The radius is so small that no image leaves early."""
    return RunSpec(
        target=f"{Path(__file__).resolve()}:padded",
        data=DataSpec(n=GROUP * cells),
        threat=ThreatSpec(eps="0.001"),
        attacks=(AttackSpec(kind="pgd", loss="ce", steps=steps),),
        batch_size=GROUP,
    )


def measure(spec: RunSpec, executor: Executor, workers: int, folder: Path) -> dict[str, Any]:
    """One run from nothing."""
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
    return {path.name: path.read_bytes() for path in (folder / "cells").iterdir()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="of one core, per cell")
    parser.add_argument("--cells", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument(
        "--niceness", type=int, default=0, help="of Ray's workers; its own choice is 15"
    )
    parser.add_argument("--out", type=Path, default=Path("benchmarks/records/executors.json"))
    asked = parser.parse_args()
    started = time.perf_counter()
    os.environ["RAY_worker_niceness"] = str(asked.niceness)  # noqa: SIM112
    os.environ.setdefault(
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0"
    )  # as our executor does: 127.0.0.1 alone
    ray.init(
        num_cpus=asked.workers,
        include_dashboard=False,
        log_to_driver=False,
        _node_ip_address="127.0.0.1",
    )
    starting = time.perf_counter() - started
    spec = specification(asked.cells, steps_for(asked.seconds))
    plan(spec)  # kept by this process: the first run must not pay for it alone
    executors: dict[str, Executor] = {"processes": Processes(asked.workers), "ray": Ray(cpus=1)}
    rounds: list[dict[str, Any]] = []
    for number in range(asked.rounds):
        place = Path(tempfile.mkdtemp())
        order = (
            list(executors) if number % 2 == 0 else list(executors)[::-1]
        )  # neither always comes first
        found = {
            name: measure(spec, executors[name], asked.workers, place / name) for name in order
        }
        same = content(place / "ray") == content(place / "processes")
        rounds.append(
            {
                **found,
                "ratio": round(found["ray"]["wall"] / found["processes"]["wall"], 4),
                "same_bytes": same,
            }
        )
        print(json.dumps(rounds[-1]), flush=True)
        shutil.rmtree(place)
    ray.shutdown()
    record = {
        "about": {
            "command": f"python -m benchmarks.executors --seconds {asked.seconds:g} --cells {asked.cells} --rounds {asked.rounds} "
            f"--workers {asked.workers} --niceness {asked.niceness}",
            "cell": f"PGD, {spec.attacks[0].steps} steps, {GROUP} digits, one thread",
            "ratio": "wall time of Ray / wall time of local processes; the cluster was started before",
            "outside": "seconds of wall time - sum of cell seconds / workers",
            "load_before": "mean number of processes that wanted to run in the minute before; above `cores`, others were at work",
            "versions": {
                "python": platform.python_version(),
                "torch": torch.__version__,
                "ray": version("ray"),
            },
            "cores": os.cpu_count(),
        },
        "starting_ray_seconds": round(starting, 2),
        "rounds": rounds,
        "median": {
            "ratio": statistics.median(r["ratio"] for r in rounds),
            "outside_processes": statistics.median(r["processes"]["outside"] for r in rounds),
            "outside_ray": statistics.median(r["ray"]["outside"] for r in rounds),
        },
    }
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record["median"]))


if __name__ == "__main__":
    main()
