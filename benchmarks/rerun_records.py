"""Run records that are picked at random again, and compare all of their numbers.

    python -m benchmarks.rerun_records --models DIR --data DIR [--count 3] [--draw 0]

Only records that are current and whose attacks took at most `--most` seconds can be picked. The
seed `--draw` decides which; each run uses the seed of its record. All numbers and intervals are
compared, except in tables of costs and columns of times, which depend on the machine. The result is
`benchmarks/records/reruns.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import torch
from benchmarks.refresh_records import RECORDS, objection, record_files

from saddlepoint.papers import EXPERIMENTS, Request
from saddlepoint.papers.provenance import source_commit
from saddlepoint.papers.registry import Scale
from saddlepoint.papers.result import Result, Table, read
from saddlepoint.papers.write import stale_reasons

RECORD = RECORDS / "reruns.json"
MEASURED = ("Cost", "time")  # in titles and columns of what depends on the machine


def main() -> None:
    """Pick records, run them, and write how they compare after each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", type=Path, required=True, help="folder of third-party networks")
    parser.add_argument("--data", type=Path, required=True, help="folder of the datasets")
    parser.add_argument("--count", type=int, default=3, help="records to run")
    parser.add_argument("--draw", type=int, default=0, help="seed of the choice")
    parser.add_argument("--most", type=float, default=400, help="seconds that a record took")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    os.environ["SADDLEPOINT_DATA"] = str(arguments.data)  # read at all scales
    known = candidates(arguments.most)
    picked = random.Random(arguments.draw).sample(sorted(known), arguments.count)
    rows = {}
    for name in picked:
        rows[name] = rerun(known[name], arguments.models, arguments.data)
        print(name, rows[name], flush=True)
        found = {
            "command": f"python -m benchmarks.rerun_records --models DIR --data DIR "
            f"--count {arguments.count} --draw {arguments.draw} --most {arguments.most:g}",
            "commit": source_commit(),
            "candidates": sorted(known),
            "records": rows,
        }
        RECORD.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def candidates(most: float) -> dict[str, Result]:
    """The current records of experiments that took at most this number of seconds, by name."""
    found = {}
    for path in record_files():
        if path.stem in stale_reasons(path.parent) or objection(path):
            continue
        result = read(path.read_text(encoding="utf-8"), str(path))
        runs_again = result.experiment in EXPERIMENTS and not result.not_run
        if runs_again and result.seconds <= most:
            found[f"{path.parent.name}/{path.stem}"] = result
    return found


def rerun(old: Result, models: Path, data: Path) -> dict[str, Any]:
    """Run the experiment of a record in a new folder and compare both."""
    with tempfile.TemporaryDirectory() as folder:
        scale = cast("Scale", old.scale)
        request = Request(Path(folder), scale, old.seed, models=models, data=data)
        new = EXPERIMENTS[old.experiment].run(request)
    return compared(old, read(new.text(), old.experiment))


def compared(old: Result, new: Result) -> dict[str, Any]:
    """How many numbers of two results are equal, and the largest difference."""
    pairs = [
        (one, other)
        for first, second in zip(old.tables, new.tables, strict=True)
        for one, other in zip(_numbers(first), _numbers(second), strict=True)
    ]
    differences = [abs(one - other) for one, other in pairs]
    return {
        "made by": old.versions.get("commit"),
        "numbers": len(pairs),
        "equal": sum(one == other for one, other in pairs),
        "largest difference": max(differences, default=0.0),
    }


def _numbers(table: Table) -> Iterator[float]:
    """The values and intervals of all cells that do not depend on the machine."""
    if any(word in table.title for word in MEASURED):
        return
    for row in table.rows:
        for column, cell in zip(table.columns, row.cells, strict=True):
            if cell is not None and not any(word in column for word in MEASURED):
                yield from cell.values
                yield from cell.interval or ()


if __name__ == "__main__":
    main()
