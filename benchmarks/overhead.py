"""The time of whole audits relative to the bare time of their attack passes.

    python -m benchmarks.overhead --models DIR --data DIR [--nets NAMES] [--images N ...]

CPU time of `sp.audit` in one process with one thread, divided by the time that the passes of its
attacks and remedies take in a bare loop on the given network, in batches of 128, before and after
the audit. The first audit loads libraries and is not counted. The record is
`benchmarks/records/overhead.json`; what is not measured again is kept in it. Shares are those of
wall-clock time: probing, diagnostics, and the rest, which calls no network (planning, conclusions,
the store and the report).
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from benchmarks.peer_accuracy import add_folders, write
from torch import Tensor, nn

import saddlepoint as sp

RECORD = Path(__file__).parent / "records" / "overhead.json"
NETS = (
    "cifar10/abcrown_resnet4b",
    "cifar10/vit_pgd_2_3_16",
    "cifar10/oval_kw_wide",
    "cifar10/akamaster_resnet20",
    "mnist/trades_smallcnn_beta5",
    "mnist/rsl18a_linf01",
)
BATCH = 128
_REPEATS = 5
_PASSES = ("attack", "remedy", "probe", "diagnose")  # stages that call the target
_RADII = {"cifar10/akamaster_resnet20": 1 / 255, "mnist/trades_smallcnn_beta5": 0.3}


def main() -> None:
    """Measure all audits and write the record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_folders(parser, required=True)
    parser.add_argument("--nets", nargs="+", default=NETS)
    parser.add_argument("--images", type=int, nargs="+", default=[128, 1000])
    parser.add_argument("--budgets", nargs="+", default=["quick", "standard"])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    sys.path.insert(0, str(arguments.models))
    record: dict[str, Any] = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    rows: list[dict[str, Any]] = [*record.get("audits", [])]
    for name in arguments.nets:
        net = load(name)
        source = name.partition("/")[0]
        radius = _RADII.get(name, 2 / 255 if source == "cifar10" else 0.1)
        for n in arguments.images:
            data = sp.load_data(source, n=n, root=str(arguments.data))
            sp.audit(net, data.x[:64], data.y[:64], threat=sp.Linf(radius), budget="quick")
            for budget in arguments.budgets:
                row = {"net": name, **measured(net, data.x, data.y, radius, budget)}
                print(row, flush=True)
                rows = [*(other for other in rows if not same(other, row)), row]
                record |= {"command": "python -m benchmarks.overhead", "audits": rows}
                write(RECORD, record)


def load(name: str) -> nn.Module:
    """A net from the module that has it."""
    ordinary = "akamaster" in name
    net: nn.Module = importlib.import_module("modules" if ordinary else "loaders").load(name)
    return net.eval()


def same(row: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two rows are measurements of the same audit."""
    return all(row[part] == other[part] for part in ("net", "images", "budget"))


def measured(net: nn.Module, x: Tensor, y: Tensor, radius: float, budget: Any) -> dict[str, Any]:
    """The ratio of one audit, and its parts."""
    before = pass_seconds(net, x[:BATCH], y[:BATCH])
    started = time.process_time()
    audit = sp.audit(net, x, y, threat=sp.Linf(radius), budget=budget, seed=0)
    seconds = time.process_time() - started
    after = pass_seconds(net, x[:BATCH], y[:BATCH])
    forward, both = ((a + b) / 2 for a, b in zip(before, after, strict=True))
    stages = {entry.name: entry for entry in audit.cost.stages}
    bare = {
        name: len(x) * ((entry.forward - entry.backward) * forward + entry.backward * both)
        for name, entry in stages.items()
    }
    attacks = bare["attack"] + bare.get("remedy", 0.0)
    clock = sum(entry.seconds for entry in stages.values())
    parts = {name: entry.seconds / clock for name, entry in stages.items()}
    rest = sum(share for name, share in parts.items() if name not in _PASSES)
    return {
        "images": len(x),
        "budget": budget,
        "robust": audit.robust_accuracy,
        "cpu_seconds": round(seconds, 2),
        "ratio_to_attack_passes": round(seconds / attacks, 2),
        "ratio_to_all_passes": round(seconds / sum(bare.values()), 2),
        "share_of_probe": round(parts["probe"], 3),
        "share_of_diagnose": round(parts["diagnose"], 3),
        "share_of_rest": round(rest, 3),
        "milliseconds_per_gradient": round(1000 * both, 3),
    }


def pass_seconds(net: nn.Module, x: Tensor, y: Tensor) -> tuple[float, float]:
    """CPU seconds per image of a forward pass, and of a forward and a backward pass."""

    def forward() -> None:
        with torch.no_grad():
            net(x)

    def both() -> None:
        z = x.clone().requires_grad_()
        loss = nn.functional.cross_entropy(net(z), y, reduction="sum")
        torch.autograd.grad(loss, z)

    return _median(forward) / len(x), _median(both) / len(x)


def _median(run: Callable[[], None]) -> float:
    run()
    found = []
    for _ in range(_REPEATS):
        started = time.process_time()
        run()
        found.append(time.process_time() - started)
    return statistics.median(found)


if __name__ == "__main__":
    main()
