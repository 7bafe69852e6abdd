"""Time and memory of audits as the number of images grows, and the speedup by workers.

    python -m benchmarks.growth --models DIR --data DIR [--net NAME] [--images N ...]
        [--workers-images N] [--repeats K]

Every audit is a command line of its own, so that its peak memory is known. CPU time and memory are
those of one process. The speedup is the wall time of one process divided by that of two workers,
and needs an otherwise idle machine. On a busy one, `cpu_ratio` is its upper bound: the CPU time of
one process, divided by that of the driver and of the busier of two workers together, which is the
time that they take if no cell waits for another one. With `--workers` or `--growth` only one of the
two parts is measured, and the other one stays in the record, `benchmarks/records/growth.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from benchmarks.peer_accuracy import add_folders, write

RECORD = Path(__file__).parent / "records" / "growth.json"
NET = "cifar10/abcrown_resnet4b"
_COMMAND = "from saddlepoint.cli import main; main()"
_TARGET = """import sys
sys.path.insert(0, {models!r})
import loaders

def make():
    return loaders.load({name!r})
"""


_POLL = 0.2  # seconds between two looks at the processes


class _Run(NamedTuple):
    wall: float  # seconds
    cpu: float  # seconds, of all processes
    peak: float  # MB, of the largest process
    longest: float  # CPU seconds of the first process and of the busiest of its children


def main() -> None:
    """Measure growth and speedup and write the record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_folders(parser, required=True)
    parser.add_argument("--net", default=NET)
    parser.add_argument("--budget", default="standard")
    parser.add_argument("--images", type=int, nargs="*", default=[100, 300, 1000, 2000, 3000])
    parser.add_argument("--workers-images", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=1)
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--growth", action="store_true", help="no speedup")
    only.add_argument("--workers", action="store_true", help="no growth")
    arguments = parser.parse_args()
    common = (arguments.models, arguments.data, arguments.net, arguments.budget)
    measured: dict[str, Any] = {"command": "python -m benchmarks.growth"}
    if not arguments.workers:
        measured["growth"] = growth(*common, arguments.images)
    if not arguments.growth:
        measured["workers"] = two_workers(*common, arguments.workers_images, arguments.repeats)
    print(measured)
    before = json.loads(RECORD.read_text()) if RECORD.is_file() else {}
    write(RECORD, before | measured)


def growth(
    models: Path, data: Path, name: str, budget: str, images: Sequence[int]
) -> dict[str, Any]:
    """CPU seconds and peak memory by number of images, and how linear the seconds are."""
    runs = []
    for n in images:
        runs.append(_audit(models, data, name, budget, n, workers=1))
        print(n, runs[-1], flush=True)
    seconds = [run.cpu for run in runs]
    r = float(np.corrcoef(images, seconds)[0, 1]) if len(runs) > 1 else 1.0
    return {
        "net": name,
        "budget": budget,
        "images": list(images),
        "cpu_seconds": [round(run.cpu, 2) for run in runs],
        "peak_megabytes": [round(run.peak) for run in runs],
        "r_squared": round(r**2, 5),
    }


def two_workers(
    models: Path, data: Path, name: str, budget: str, images: int, repeats: int
) -> dict[str, Any]:
    """Wall seconds of one process relative to those of two workers; the median of all ratios."""
    pairs = []
    for _ in range(repeats):
        one = _audit(models, data, name, budget, images, workers=1)
        two = _audit(models, data, name, budget, images, workers=2)
        pairs.append((one, two))
        print(pairs[-1], flush=True)
    return {
        "net": name,
        "budget": budget,
        "images": images,
        "wall_seconds": [[round(run.wall, 2) for run in pair] for pair in pairs],
        "cpu_seconds": [[round(run.cpu, 2) for run in pair] for pair in pairs],
        "longest_cpu_seconds": [[round(run.longest, 2) for run in pair] for pair in pairs],
        "ratio": round(statistics.median(one.wall / two.wall for one, two in pairs), 3),
        "cpu_ratio": round(statistics.median(one.cpu / two.longest for one, two in pairs), 3),
    }


def _audit(models: Path, data: Path, name: str, budget: str, images: int, workers: int) -> _Run:
    source = name.partition("/")[0]
    radius = "2/255" if source == "cifar10" else "0.1"
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "target.py"
        target.write_text(_TARGET.format(models=str(models.resolve()), name=name))
        options = ["--quiet", "--data", source, "--root", str(data.resolve())]
        options += ["--n", str(images), "--workers", str(workers)]
        options += ["--eps", radius, "--budget", budget, "--out", str(Path(folder) / "run")]
        command = [sys.executable, "-c", _COMMAND, "audit", f"{target}:make", *options]
        started = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            seconds, used = _followed(process)
        except BaseException:
            process.kill()
            raise
        if process.returncode:
            raise RuntimeError(f"the audit of {name} ended with status {process.returncode}.")
        wall = time.perf_counter() - started
    longest = seconds.pop(process.pid) + max(seconds.values(), default=0.0)
    return _Run(wall, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, longest)


def _followed(process: subprocess.Popen[bytes]) -> tuple[dict[int, float], resource.struct_rusage]:
    """CPU seconds of a process and of each of its children, and the resources of all of them."""
    seconds: dict[int, float] = {}
    while True:
        for pid in (process.pid, *_children(process.pid)):
            seconds[pid] = _cpu_seconds(pid) or seconds.get(pid, 0.0)
        time.sleep(_POLL)
        ended, status, used = os.wait4(process.pid, os.WNOHANG)
        if ended:
            process.returncode = os.waitstatus_to_exitcode(status)
            return seconds, used


def _children(pid: int) -> list[int]:
    try:
        return [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _cpu_seconds(pid: int) -> float:
    """CPU time of a process so far; zero if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
