"""Overhead of executors on many cells that take a few milliseconds each.

    python -m benchmarks.tiny_cells --cells 10000 --out benchmarks/records/tiny-cells.json

A cell is one step of FGSM on one digit. Every executor computes all cells with one worker. While
results arrive, this process computes every fourth of these cells serially and compares the bytes,
so that both run at the same time and under the same load of the machine. `overhead` is the CPU time
per cell of the executor (driver, worker, and all processes of Ray) divided by that of the serial
computation, minus 1. The clock starts with the first result, when the worker is started and the
target is loaded.

Some processes of Ray are busy even if nothing is computed (`idle`, CPU seconds per second, measured
before the cells). On a machine that other programs use, cells take many times longer than their CPU
time, and these processes would count as often. They are therefore counted for the CPU time of the
cells only, which is what they cost on a free core; `overhead_with_waiting` counts them all the
time. The numbers of `alone` are without batches (one cell per message), on a tenth of the cells.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.soak import descendants

from saddlepoint.runs.executors import Executor, Processes
from saddlepoint.runs.packed_cell import PackedCell
from saddlepoint.runs.ray import Ray
from saddlepoint.runs.spec import AttackSpec, DataSpec, RunSpec, ThreatSpec
from saddlepoint.runs.store import versions
from saddlepoint.runs.work import Cell, Work, load, result_of

_FIRST = 4  # cells before the measurement
_IDLE = 20.0  # seconds without cells
_SAMPLED = 4  # one in as many cells is also computed serially
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


def measured(executor: Executor, work: Work, spec: str, cells: Sequence[Cell]) -> dict[str, Any]:
    """CPU milliseconds per cell of an executor and of this process alone, on the same cells."""
    by_key = {work.key(cell): cell for cell in cells}
    for _ in executor.run(work, spec, cells[:_FIRST]):
        pass  # the worker is started
    before = cpu_seconds()
    time.sleep(_IDLE)
    idle = _spent_since(before) / _IDLE
    began = serial = 0.0
    done = compared = 0
    same = True
    for result in executor.run(work, spec, cells):
        assert isinstance(result, PackedCell), result
        if not done:
            before = cpu_seconds()
            began = time.perf_counter()
        elif done % _SAMPLED == 0:
            begun = time.thread_time()
            own = result_of(work, by_key[result.key])
            serial += time.thread_time() - begun
            assert isinstance(own, PackedCell), own
            same &= (own.record, own.tensors) == (result.record, result.tensors)
            compared += 1
        done += 1
    wall = time.perf_counter() - began
    one = serial / compared
    spent = (_spent_since(before) - serial) / (done - 1)
    waiting = idle * max(wall / (done - 1) - one, 0.0)
    return {
        "cells": done,
        "same_bytes": same,
        "idle": round(idle, 4),
        "wall_ms": round(1000 * wall / (done - 1), 3),
        "serial_ms": round(1000 * one, 3),
        "executor_ms": round(1000 * (spent - waiting), 3),
        "overhead": round((spent - waiting) / one - 1, 4),
        "overhead_with_waiting": round(spent / one - 1, 4),
    }


def _spent_since(before: dict[int, float]) -> float:
    """CPU seconds of all processes since a measurement.

    Workers that ended meanwhile were idle ones of an earlier measurement.
    """
    return sum(now - before.get(pid, 0.0) for pid, now in cpu_seconds().items())


def cpu_seconds() -> dict[int, float]:
    """CPU time of this process, its workers, and the processes of Ray, by process."""
    found = {}
    for pid in (os.getpid(), *descendants(os.getpid())):
        with suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            found[pid] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return found


def main() -> None:
    """Measure and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--cells", type=int, default=10000)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/records/tiny-cells.json"))
    arguments = parser.parse_args()
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112
    spec = specification(arguments.cells)
    work = load(spec)
    cells = list(work.keys)[: arguments.cells]
    few = cells[: max(len(cells) // 10, 2)]
    one_worker = float(os.cpu_count() or 1)
    cases: dict[str, tuple[Executor, Sequence[Cell]]] = {
        "ray": (Ray(cpus=one_worker), cells),
        "ray alone": (Ray(cpus=one_worker, batch_seconds=0.0), few),
        "processes": (Processes(workers=1), cells),
        "processes alone": (Processes(workers=1, batch_seconds=0.0), few),
    }
    found: dict[str, Any] = {
        "command": f"python -m benchmarks.tiny_cells --cells {arguments.cells}",
        "versions": versions(),
        "cores": os.cpu_count(),
        "executors": {},
    }
    for name, (executor, some) in cases.items():
        one = measured(executor, work, spec.model_dump_json(), some)
        executor.close()
        found["executors"][name] = {**one, "load": round(os.getloadavg()[0], 1)}
        print(name, json.dumps(found["executors"][name]), flush=True)
        arguments.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
