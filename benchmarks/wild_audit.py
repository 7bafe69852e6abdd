"""`sp.audit` on third-party networks, beside AutoAttack-standard, and the page about the results.

    python -m benchmarks.wild_audit --models DIR --data DIR --signs FILE.npz \\
        --out benchmarks/records/wild-audit.json
    python -m benchmarks.wild_audit --out benchmarks/records/wild-audit.json \\
        --page docs/results/wild.md

index.json in the folder of models lists the nets, and loaders.py loads them by name. For nine
robust nets the collectors state AutoAttack's figures on the first 200 test images. These nets are
audited with the budget `standard` on the first 300 images, all others with `quick` on the first
100. Seed 0, one thread. Nets that are already in the record are skipped, and the record is written
after each net, so the command can be interrupted and started again. The page also reads
wild-autoattack.json in the folder of the record: AutoAttack on images 200 to 299, by
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
from benchmarks.peer_accuracy import NETS, add_folders, bits, write
from benchmarks.wild_page import page
from torch import Tensor, nn

import saddlepoint as sp

SEED = 0
ROBUST_IMAGES = 300  # per net with stated AutoAttack figures
OTHER_IMAGES = 100  # per other net
STATED_RADII = {net.name: net.linf for net in NETS}  # radius of the stated AutoAttack figures
WITHOUT_FORWARD = ("mnist/abs_vaes",)  # tensors only


def main() -> None:
    """Audit all nets that are not in the record, or write the page."""
    parser = _parser()
    arguments = parser.parse_args()
    if arguments.page:
        autoattack = json.loads((arguments.out.parent / "wild-autoattack.json").read_text())
        arguments.page.write_text(page(json.loads(arguments.out.read_text()), autoattack))
        return
    if not (arguments.models and arguments.data and arguments.signs):
        parser.error("specify --models, --data and --signs, or --page")
    torch.set_num_threads(1)
    sys.path.insert(0, str(arguments.models))
    loaders = importlib.import_module("loaders")
    record = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    for entry in json.loads((arguments.models / "index.json").read_text()):
        name = entry["name"]
        skipped = arguments.nets and name not in arguments.nets
        if name in record or name in WITHOUT_FORWARD or skipped:
            continue
        record[name] = measure(loaders.load(name), entry, arguments)
        write(arguments.out, record)
        shown = ("budget", "left", "forward", "backward", "verdict")
        print(name, {key: record[name][key] for key in shown}, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_folders(parser, required=False)
    parser.add_argument(
        "--signs", type=Path, help="traffic signs, resized for the net that classifies them"
    )
    parser.add_argument("--out", type=Path, required=True, help="record to write or to continue")
    parser.add_argument("--nets", nargs="+", default=[], help="only these nets")
    parser.add_argument("--page", type=Path, help="only write the page from the record")
    return parser


def measure(net: nn.Module, entry: dict[str, Any], arguments: argparse.Namespace) -> dict[str, Any]:
    """Audit one net."""
    source = entry["name"].partition("/")[0]
    radius = radius_of(entry)
    has_stated_figures = entry["name"] in STATED_RADII
    budget = "standard" if has_stated_figures else "quick"
    n = ROBUST_IMAGES if has_stated_figures else OTHER_IMAGES
    dataset = str(arguments.signs) if source == "gtsrb" else source
    images = sp.load_data(dataset, n=n, root=str(arguments.data))
    counter = PassCounter(net)
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
        "asked": [counter.forwards / n, counter.backwards / n],
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
    """The radius that the net was trained for.

    2/255 on CIFAR-10, 8/255 on traffic signs, 0.3 or 0.1 on MNIST; 0.1 for MNIST nets trained
    without a radius.
    """
    if entry["name"] in STATED_RADII:
        return STATED_RADII[entry["name"]]
    source = entry["name"].partition("/")[0]
    if source == "cifar10":
        return 2 / 255
    if source == "gtsrb":
        return 8 / 255
    return 0.3 if "0.3" in entry["training"] else 0.1


class PassCounter:
    """Counts all passes through a net: of attacks, the verdict and the diagnostics.

    A copy of the net has a copy of this object, so the probe, which runs on copies, is not counted.
    """

    def __init__(self, net: nn.Module) -> None:
        self.forwards = 0  # images
        self.backwards = 0  # images
        net.register_forward_hook(self._count_forward)

    def _count_forward(self, _net: nn.Module, _x: tuple[Tensor], logits: Tensor) -> None:
        self.forwards += len(logits)
        if logits.requires_grad:
            logits.register_hook(self._count_backward)

    def _count_backward(self, cotangent: Tensor) -> None:
        self.backwards += len(cotangent)


if __name__ == "__main__":
    main()
