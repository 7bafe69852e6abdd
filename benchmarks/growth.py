"""Time and memory of audits as the number of images grows, and with two workers.

Used by `python -m benchmarks.overhead`. Every audit is a process of its own, so that its peak
memory is known.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

_COMMAND = "from saddlepoint.cli import main; main()"
_TARGET = """import sys
sys.path.insert(0, {models!r})
import loaders

def make():
    return loaders.load({name!r})
"""


class _Run(NamedTuple):
    wall: float  # seconds
    cpu: float  # seconds, of all processes
    peak: float  # MB, of the largest process


def growth(
    models: Path, data: Path, name: str, images: Sequence[int], budget: str
) -> dict[str, Any]:
    """CPU seconds and peak memory by number of images, and how linear the seconds are."""
    runs = [_audit(models, data, name, n, budget, workers=1) for n in images]
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


def two_workers(models: Path, data: Path, name: str, images: int, budget: str) -> dict[str, Any]:
    """Wall seconds of one process relative to those of two workers."""
    one, two = (_audit(models, data, name, images, budget, workers=k) for k in (1, 2))
    return {
        "net": name,
        "budget": budget,
        "images": images,
        "wall_seconds": [round(one.wall, 2), round(two.wall, 2)],
        "ratio": round(one.wall / two.wall, 3),
    }


def _audit(models: Path, data: Path, name: str, images: int, budget: str, workers: int) -> _Run:
    source = name.partition("/")[0]
    radius = "2/255" if source == "cifar10" else "0.1"
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "target.py"
        target.write_text(_TARGET.format(models=str(models.resolve()), name=name))
        options = ["--quiet", "--data", source, "--root", str(data.resolve())]
        options += ["--n", str(images)]
        options += ["--eps", radius, "--budget", budget, "--out", str(Path(folder) / "run")]
        if workers > 1:
            options += ["--executor", "processes", "--workers", str(workers)]
        command = [sys.executable, "-c", _COMMAND, "audit", f"{target}:make", *options]
        started = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise RuntimeError(f"the audit of {name} ended with status {process.returncode}.")
        wall = time.perf_counter() - started
    return _Run(wall, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)
