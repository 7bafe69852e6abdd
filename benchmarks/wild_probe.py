"""What `sp.probe` says of networks that others trained: of plain static ones it should say nothing.

    python -m benchmarks.wild_probe --models DIR --data DIR --signs FILE.npz --out benchmarks/records/wild-probe.json

index.json in the folder of models lists them, loaders.py loads them by name. The first 16 test images, Linf 2/255 on color images
and 0.1 on MNIST; traffic signs come from a file of their own, of the size that the network was trained for.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path
from typing import Any

import torch
from benchmarks.wild_audit import WITHOUT_FORWARD

import saddlepoint as sp

RADII = {"cifar10": 2 / 255, "mnist": 0.1, "gtsrb": 8 / 255}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--signs", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    sys.path.insert(0, str(asked.models))
    loaders = importlib.import_module("loaders")
    record = {}
    for entry in json.loads((asked.models / "index.json").read_text()):
        if entry["name"] in WITHOUT_FORWARD:
            continue
        record[entry["name"]] = found = _probed(loaders.load(entry["name"]), entry, asked)
        print(entry["name"], found["present"], flush=True)
        asked.out.write_text(json.dumps(record, indent=1) + "\n")


def _probed(
    net: torch.nn.Module, entry: dict[str, Any], asked: argparse.Namespace
) -> dict[str, Any]:
    source = entry["name"].partition("/")[0]
    radius = RADII[source]
    named = str(asked.signs) if source == "gtsrb" else source
    images = sp.load_data(named, n=16, root=str(asked.data))
    traits = sp.probe(net, images.x, images.y, threat=sp.Linf(radius))
    return {
        "training": entry["training"],
        "radius": radius,
        "present": {trait.name: trait.evidence for trait in traits if trait.present},
        "untold": {trait.name: trait.evidence for trait in traits if trait.present is None},
    }


if __name__ == "__main__":
    main()
