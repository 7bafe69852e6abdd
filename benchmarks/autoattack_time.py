"""The CPU time of `standard` audits beside that of AutoAttack-standard, on the same images.

    python -m benchmarks.autoattack_time --models DIR --data DIR [--nets NAMES] [--n N]

Test images from 200 on, one process, one thread, first the audit and then AutoAttack
(pyautoattack). The time of an audit contains probes, diagnostics and the referee. A short audit
before loads libraries and is not counted. The record is `benchmarks/records/autoattack-time.json`.
Its nets that are not measured again are kept if they have the same number of images.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from benchmarks.peer_accuracy import (
    NETS,
    SEED,
    Net,
    add_folders,
    first_images,
    score_points,
    write,
)
from benchmarks.wild_autoattack import FROM
from tests.references import peers
from torch import nn

import saddlepoint as sp

RECORD = Path(__file__).parent / "records" / "autoattack-time.json"


def main() -> None:
    """Measure all nets and write the record after each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_folders(parser, required=True)
    names = [net.name for net in NETS]
    parser.add_argument("--nets", nargs="+", default=names, choices=names)
    parser.add_argument("--n", type=int, default=100)
    parser.add_argument("--out", type=Path, default=RECORD)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    sys.path.insert(0, str(arguments.models))
    loaders = importlib.import_module("loaders")
    rows = kept(arguments.out, arguments.n)
    for net in NETS:
        if net.name in arguments.nets:
            rows[net.name] = measured(loaders.load(net.name), net, arguments.data, arguments.n)
            print(net.name, rows[net.name], flush=True)
            record = {
                "command": f"python -m benchmarks.autoattack_time --n {arguments.n}",
                "versions": peers.versions(),
                "images": arguments.n,
                "median_ratio": statistics.median(row["ratio"] for row in rows.values()),
                "nets": rows,
            }
            write(arguments.out, record)


def kept(path: Path, n: int) -> dict[str, Any]:
    """The nets of the record, if it has n images."""
    record = json.loads(path.read_text()) if path.exists() else {}
    found: dict[str, Any] = record["nets"] if record.get("images") == n else {}
    return found


def measured(model: nn.Module, net: Net, data: Path, n: int) -> dict[str, Any]:
    """Seconds and robust images of both on one net."""
    x, y = (part[FROM:] for part in first_images(data, net.name.split("/")[0], FROM + n))
    threat = sp.Linf(net.linf)
    sp.audit(model, x[:16], y[:16], threat=threat, budget="quick")
    started = time.process_time()
    audit = sp.audit(model, x, y, threat=threat, budget="standard", seed=SEED)
    ours = time.process_time() - started
    started = time.process_time()
    run = peers.ATTACKS["autoattack-linf"]["pyautoattack"]
    points = run(model, x.clone(), y.clone(), net.linf, seed=SEED)
    theirs = time.process_time() - started
    score = score_points(model, x, y, points, math.inf, net.linf)
    return {
        "ratio": round(ours / theirs, 4),
        "audit_cpu_seconds": round(ours, 2),
        "autoattack_cpu_seconds": round(theirs, 2),
        "audit_robust": round(audit.robust_accuracy * n),
        "autoattack_robust": int(score.robust.sum()),
        "verdict": str(audit.verdict),
    }


if __name__ == "__main__":
    main()
