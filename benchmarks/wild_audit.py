"""`sp.audit` on networks that others trained, with AutoAttack-standard beside it, and the page that tells of it.

    python -m benchmarks.wild_audit --models DIR --data DIR --signs FILE.npz --out benchmarks/records/wild-audit.json
    python -m benchmarks.wild_audit --out benchmarks/records/wild-audit.json --page docs/results/wild.md

index.json in the folder of models lists them, loaders.py loads them by name. Nine robust nets, for which those who collected them
state AutoAttack's figures on the first 200 test images, are audited at `standard` on the first 300; all others at `quick` on the
first 100. Seed 0, one thread. Nets already in the record are skipped, and it is written after each, so the command can be stopped
and started again. The page reads wild-autoattack.json beside the record: AutoAttack on images 200 to 299, by
`benchmarks.wild_autoattack`.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path
from typing import Any

import torch
from benchmarks.peer_accuracy import NETS, bits, write
from benchmarks.wild_page import page
from torch import Tensor, nn

import saddlepoint as sp

SEED = 0
ROBUST = 300
OTHERS = 100  # images of each net
STATED = {
    net.name: net.linf for net in NETS
}  # nets for which AutoAttack's figures are stated, and at which radius
WITHOUT_FORWARD = ("mnist/abs_vaes",)  # tensors only


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument(
        "--models", type=Path, help="directory with loaders.py, index.json and the checkpoints"
    )
    arguments.add_argument(
        "--data", type=Path, help="directory with cifar-10-batches-bin and mnist"
    )
    arguments.add_argument(
        "--signs", type=Path, help="traffic signs of the size that their net was trained for"
    )
    arguments.add_argument(
        "--out", type=Path, required=True, help="the record to write, or to go on with"
    )
    arguments.add_argument("--nets", nargs="+", default=[], help="these nets only")
    arguments.add_argument(
        "--page", type=Path, help="write the page from the record, and do nothing else"
    )
    chosen = arguments.parse_args()
    if chosen.page:
        autoattack = json.loads((chosen.out.parent / "wild-autoattack.json").read_text())
        chosen.page.write_text(page(json.loads(chosen.out.read_text()), autoattack))
        return
    if not (chosen.models and chosen.data and chosen.signs):
        arguments.error("give --models, --data and --signs, or --page")
    torch.set_num_threads(1)
    sys.path.insert(0, str(chosen.models))
    loaders = importlib.import_module("loaders")
    record = json.loads(chosen.out.read_text()) if chosen.out.exists() else {}
    for entry in json.loads((chosen.models / "index.json").read_text()):
        name = entry["name"]
        if name in record or name in WITHOUT_FORWARD or (chosen.nets and name not in chosen.nets):
            continue
        record[name] = measured(loaders.load(name), entry, chosen)
        write(chosen.out, record)
        print(
            name,
            {
                key: record[name][key]
                for key in ("budget", "left", "forward", "backward", "verdict")
            },
            flush=True,
        )


def measured(net: nn.Module, entry: dict[str, Any], chosen: argparse.Namespace) -> dict[str, Any]:
    source = entry["name"].partition("/")[0]
    radius = radius_of(entry)
    budget, n = ("standard", ROBUST) if entry["name"] in STATED else ("quick", OTHERS)
    images = sp.load_data(
        str(chosen.signs) if source == "gtsrb" else source, n=n, root=str(chosen.data)
    )
    asked = Asked(net)
    audit = sp.audit(net, images.x, images.y, threat=sp.Linf(radius), budget=budget, seed=SEED)
    return {
        "training": entry["training"],
        "stated": entry.get("rob", {}).get(f"{radius:.4f}"),
        "radius": radius,
        "budget": budget,
        "n": n,
        "clean": audit.clean_accuracy,
        "left": int(audit.correct.sum()),
        "which": bits(audit.correct.bool()),
        "interval": [audit.interval.low, audit.interval.high],
        "forward": sum(row.forward for row in audit.rows),
        "backward": sum(row.backward for row in audit.rows),
        "asked": [asked.forwards / n, asked.backwards / n],
        "verdict": audit.verdict,
        "reasons": list(audit.reasons),
        "rows": [
            {
                "name": row.name,
                "alone": row.robust_accuracy,
                "running": row.running,
                "passes": row.forward + row.backward,
            }
            for row in audit.rows
        ],
    }


def radius_of(entry: dict[str, Any]) -> float:
    """What the net was trained for: 2/255 on CIFAR-10, 0.3 or 0.1 on MNIST; 0.1 where it was trained for nothing."""
    if entry["name"] in STATED:
        return STATED[entry["name"]]
    source = entry["name"].partition("/")[0]
    return {"cifar10": 2 / 255, "gtsrb": 8 / 255}.get(
        source, 0.3 if "0.3" in entry["training"] else 0.1
    )


class Asked:
    """All that a net was asked: by attacks, the probe, the verdict, and by trials that look for signs of failure."""

    def __init__(self, net: nn.Module) -> None:
        self.forwards = self.backwards = 0
        net.register_forward_hook(self._forth)

    def _forth(self, net: nn.Module, x: tuple[Tensor], logits: Tensor) -> None:  # noqa: ARG002
        self.forwards += len(logits)
        if logits.requires_grad:
            logits.register_hook(self._back)

    def _back(self, cotangent: Tensor) -> None:
        self.backwards += len(cotangent)


if __name__ == "__main__":
    main()
