"""Traits that `sp.probe` finds in third-party networks; a plain static network should have none.

    python -m benchmarks.wild_probe --models DIR --data DIR --signs FILE.npz \\
        --out benchmarks/records/wild-probe.json

index.json in the folder of models lists the nets, and loaders.py loads them by name. The first 16
test images; Linf 2/255 on CIFAR-10, 8/255 on traffic signs and 0.1 on MNIST. Traffic signs are read
from a separate file, with the image size that the network was trained for.
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
    """Probe all nets and write the record after each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--signs", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    sys.path.insert(0, str(arguments.models))
    loaders = importlib.import_module("loaders")
    record = {}
    for entry in json.loads((arguments.models / "index.json").read_text()):
        name = entry["name"]
        if name in WITHOUT_FORWARD:
            continue
        record[name] = probe_net(loaders.load(name), entry, arguments)
        print(name, record[name]["present"], flush=True)
        arguments.out.write_text(json.dumps(record, indent=1) + "\n")


def probe_net(
    net: torch.nn.Module, entry: dict[str, Any], arguments: argparse.Namespace
) -> dict[str, Any]:
    """The traits found in one net, and those that could not be decided."""
    source = entry["name"].partition("/")[0]
    radius = RADII[source]
    dataset = str(arguments.signs) if source == "gtsrb" else source
    images = sp.load_data(dataset, n=16, root=str(arguments.data))
    traits = sp.probe(net, images.x, images.y, threat=sp.Linf(radius))
    return {
        "training": entry["training"],
        "radius": radius,
        "present": {trait.name: trait.evidence for trait in traits if trait.present},
        "untold": {trait.name: trait.evidence for trait in traits if trait.present is None},
    }


if __name__ == "__main__":
    main()
