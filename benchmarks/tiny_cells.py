"""Overhead of executors on many cells that take a few milliseconds each.

    python -m benchmarks.tiny_cells --cells 10000 --out benchmarks/records/tiny-cells.json

A cell is one step of FGSM on one digit. Every executor computes the same cells with one worker, and
the bytes are compared. The clock starts with the first result, when workers are started and the
target is loaded. `overhead` is the time per cell divided by that of the serial executor, minus 1:
once the CPU time of the driver, the workers and all processes of Ray, which hardly depends on other
load of the machine, and once the wall time, which does. The numbers of `alone` are without batches
(one cell per message). The executors take turns over `--rounds` parts of the cells, and the median
is recorded.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.soak import descendants

from saddlepoint.runs import batches
from saddlepoint.runs.executors import Executor, Processes, Serial
from saddlepoint.runs.packed_cell import PackedCell
from saddlepoint.runs.ray import Ray
from saddlepoint.runs.spec import AttackSpec, DataSpec, RunSpec, ThreatSpec
from saddlepoint.runs.store import versions
from saddlepoint.runs.work import Cell, Work, load

ATTACKS = 20  # with the clean images, 477 of the 500 digits give 10,000 cells


def specification(cells: int) -> RunSpec:
    """Images x attacks = cells, and as many cells of the clean images as there are images."""
    return RunSpec(
        target="zoo:digits-pgd",
        data=DataSpec(n=-(-cells // (ATTACKS + 1))),
        threat=ThreatSpec(eps="0.1"),
        attacks=tuple(AttackSpec(kind="fgsm", name=f"fgsm-{k}") for k in range(ATTACKS)),
        batch_size=1,
    )


def timed(executor: Executor, work: Work, spec: str, cells: Sequence[Cell]) -> dict[str, Any]:
    """Milliseconds per cell after the first result, by wall clock and CPU, and all hashes."""
    found = {}
    started = spent = 0.0
    for result in executor.run(work, spec, cells):
        assert isinstance(result, PackedCell), result
        if not found:
            started = time.perf_counter()
            spent = cpu_seconds()
        found[result.key] = hashlib.sha256(result.record + result.tensors).hexdigest()
    scale = 1000 / (len(found) - 1)
    wall = round(scale * (time.perf_counter() - started), 3)
    cpu = round(scale * (cpu_seconds() - spent), 3)
    return {"times": {"wall": wall, "cpu": cpu}, "bytes": found}


def cpu_seconds() -> float:
    """CPU time of this process, its workers, and the processes of Ray."""
    ticks = 0
    for pid in (os.getpid(), *descendants(os.getpid())):
        with suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def one_round(
    executors: dict[str, Executor], work: Work, spec: str, cells: Sequence[Cell], few: int
) -> dict[str, Any]:
    """All executors on the same cells, those without batches and the serial one on fewer."""
    found = {}
    largest = batches._LARGEST
    for name, executor in executors.items():
        found[name] = timed(executor, work, spec, cells[:few] if name == "serial" else cells)
        if name != "serial":
            batches._LARGEST = 1
            found[f"{name} alone"] = timed(executor, work, spec, cells[:few])
            batches._LARGEST = largest
    whole = found["processes"]["bytes"]
    times = {name: one["times"] for name, one in found.items()}
    same = all(one["bytes"].items() <= whole.items() for one in found.values())
    return {**times, "same_bytes": same, "cells": len(cells), "cells_of_serial_and_alone": few}


def main() -> None:
    """Measure and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--cells", type=int, default=10000)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/records/tiny-cells.json"))
    arguments = parser.parse_args()
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112
    spec = specification(arguments.cells)
    work = load(spec)
    executors: dict[str, Executor] = {
        "serial": Serial(),
        "processes": Processes(workers=1),
        "ray": Ray(cpus=os.cpu_count()),  # one worker
    }
    cells = list(work.keys)[: arguments.cells]
    size = len(cells) // arguments.rounds
    parts = [cells[k * size : (k + 1) * size] for k in range(arguments.rounds)]
    rounds: list[dict[str, Any]] = []
    for part in parts:
        few = max(len(part) // 5, 2)
        rounds.append(one_round(executors, work, spec.model_dump_json(), part, few))
        print(json.dumps(rounds[-1]), flush=True)
        arguments.out.write_text(json.dumps(_record(arguments, rounds), indent=1) + "\n")
    executors["processes"].close()
    print(json.dumps(_record(arguments, rounds)["overhead"]))


def _record(arguments: argparse.Namespace, rounds: list[dict[str, Any]]) -> dict[str, Any]:
    names = ("processes", "processes alone", "ray", "ray alone")
    return {
        "command": "python -m benchmarks.tiny_cells "
        f"--cells {arguments.cells} --rounds {arguments.rounds}",
        "versions": versions(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "cells": sum(one["cells"] for one in rounds),
        "same_bytes": all(one["same_bytes"] for one in rounds),
        "overhead": {
            clock: {name: _overhead(rounds, name, clock) for name in names}
            for clock in ("cpu", "wall")
        },
        "milliseconds_per_cell": rounds,
    }


def _overhead(rounds: list[dict[str, Any]], name: str, clock: str) -> float:
    ratios = [one[name][clock] / one["serial"][clock] for one in rounds]
    return round(statistics.median(ratios) - 1, 4)


if __name__ == "__main__":
    main()
