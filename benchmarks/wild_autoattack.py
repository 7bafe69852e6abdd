"""AutoAttack-standard on nets that others trained, for the images on which nobody stated its figure, with its passes counted.

    python -m benchmarks.wild_autoattack --models DIR --data DIR --out benchmarks/records/wild-autoattack.json

Test images 200 to 299, seed 0, one thread, batches of 100. A pass is one image going once through the net, forward or backward;
all of them count, AutoAttack's own checks of the net as well. Nets already in the record are skipped.
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
from benchmarks.peer_accuracy import NETS, SEED, Net, bits, first_images, scored, since, write
from tests.references import peers
from torch import Tensor, nn

FROM = 200
TO = 300


class Counted(nn.Module):
    """A net, and how many images went through it each way."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        self.forwards = 0
        self.backwards = 0

    def forward(self, x: Tensor) -> Tensor:
        self.forwards += len(x)
        logits: Tensor = self.net(x)
        if logits.requires_grad:
            logits.register_hook(self._back)
        return logits

    def _back(self, cotangent: Tensor) -> None:
        self.backwards += len(cotangent)


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument(
        "--models", type=Path, required=True, help="directory with loaders.py and the checkpoints"
    )
    arguments.add_argument(
        "--data", type=Path, required=True, help="directory with cifar-10-batches-bin and mnist"
    )
    arguments.add_argument(
        "--out", type=Path, required=True, help="the record to write, or to go on with"
    )
    arguments.add_argument(
        "--nets", nargs="+", default=[], choices=[net.name for net in NETS], help="these nets only"
    )
    chosen = arguments.parse_args()
    torch.set_num_threads(1)
    sys.path.insert(0, str(chosen.models))
    loaders = importlib.import_module("loaders")
    record = (
        json.loads(chosen.out.read_text())
        if chosen.out.exists()
        else {"versions": peers.versions(), "nets": {}}
    )
    for where in NETS:
        if where.name not in record["nets"] and (not chosen.nets or where.name in chosen.nets):
            record["nets"][where.name] = measured(loaders.load(where.name), where, chosen.data)
            write(chosen.out, record)
            print(where.name, record["nets"][where.name], flush=True)


def measured(net: nn.Module, where: Net, data: Path) -> dict[str, Any]:
    x, y = (part[FROM:] for part in first_images(data, where.name.split("/")[0], TO))
    counted = Counted(net)
    start = time.perf_counter()
    found = peers.ATTACKS["autoattack-linf"]["pyautoattack"](
        counted, x.clone(), y.clone(), where.linf, seed=SEED
    )
    seconds = since(start)
    score = scored(net, x, y, found, math.inf, where.linf)
    return {
        "radius": where.linf,
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
