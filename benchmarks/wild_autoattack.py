"""AutoAttack-standard on third-party nets, on images without a stated figure, with its passes.

    python -m benchmarks.wild_autoattack --models DIR --data DIR \\
        --out benchmarks/records/wild-autoattack.json

Test images 200 to 299, seed 0, one thread, batches of 100. A pass is one image through the net,
forward or backward. All passes are counted, including those of AutoAttack's own checks of the net.
Nets that are already in the record are skipped.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
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
    bits,
    first_images,
    score_points,
    since,
    write,
)
from tests.references import peers
from torch import Tensor, nn

FROM = 200
TO = 300


class CountedNet(nn.Module):
    """A net that counts the images of its forward and backward passes."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        self.forwards = 0
        self.backwards = 0

    def forward(self, x: Tensor) -> Tensor:
        self.forwards += len(x)
        logits: Tensor = self.net(x)
        if logits.requires_grad:
            logits.register_hook(self._count_backward)
        return logits

    def _count_backward(self, cotangent: Tensor) -> None:
        self.backwards += len(cotangent)


def main() -> None:
    """Attack all nets that are not in the record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_folders(parser, required=True)
    parser.add_argument("--out", type=Path, required=True, help="record to write or to continue")
    parser.add_argument(
        "--nets", nargs="+", default=[], choices=[net.name for net in NETS], help="only these nets"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    sys.path.insert(0, str(arguments.models))
    loaders = importlib.import_module("loaders")
    if arguments.out.exists():
        record = json.loads(arguments.out.read_text())
    else:
        record = {"versions": peers.versions(), "nets": {}}
    for net in NETS:
        if net.name in record["nets"] or (arguments.nets and net.name not in arguments.nets):
            continue
        record["nets"][net.name] = measure(loaders.load(net.name), net, arguments.data)
        write(arguments.out, record)
        print(net.name, record["nets"][net.name], flush=True)


def measure(model: nn.Module, net: Net, data: Path) -> dict[str, Any]:
    """Run AutoAttack on one net and count its passes."""
    x, y = (part[FROM:] for part in first_images(data, net.name.split("/")[0], TO))
    counted = CountedNet(model)
    start = time.perf_counter()
    points = peers.ATTACKS["autoattack-linf"]["pyautoattack"](
        counted, x.clone(), y.clone(), net.linf, seed=SEED
    )
    seconds = since(start)
    score = score_points(model, x, y, points, math.inf, net.linf)
    return {
        "radius": net.linf,
        "from": FROM,
        "to": TO,
        "seconds": seconds,
        "robust": int(score.robust.sum()),
        "which": bits(score.robust),
        "forward": counted.forwards / len(x),
        "backward": counted.backwards / len(x),
    }


if __name__ == "__main__":
    main()
