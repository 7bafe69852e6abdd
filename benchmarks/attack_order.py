"""The order of the attacks of an audit that breaks most images per pass, learned on other nets.

    python -m benchmarks.attack_order --models DIR --data DIR [--images N] [--sets NAME ...]

Every attack of the `standard` plan runs on the first test images of robust third-party nets, each
at the radius that it was trained for. For each image and attack it is recorded whether the image
is broken and how many forward and backward passes that took. Nets alternate between a training
half and a test half within each data set. On the training half, the attack that breaks most of the
remaining images per pass is chosen again and again. For the test half, the record has the passes
per image of all attacks on all images, as audits run them, and of attacks on remaining images
only, in the order of the plan, in the learned order, and in the best order of that half. Nets that
are in the record are skipped. The record is `benchmarks/records/attack-order.json`.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.peer_accuracy import add_folders, write
from benchmarks.wild_audit import radius_of
from numpy.typing import NDArray
from torch import nn

import saddlepoint as sp
from saddlepoint.audits import AuditRequest, prepare
from saddlepoint.audits.pipeline import InProcess

RECORD = Path(__file__).parent / "records" / "attack-order.json"
_LEAST_ROBUST = 0.3  # accuracy under PGD-20, stated by the collectors
Results = Mapping[str, Mapping[str, Any]]  # of one net: by attack, correct and passes
Bools = NDArray[np.bool_]


def main() -> None:
    """Attack all nets that are not in the record, learn the order and write the record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_folders(parser, required=True)
    parser.add_argument("--images", type=int, default=128)
    parser.add_argument("--sets", nargs="+", default=["cifar10", "mnist"], help="data sets")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    sys.path.insert(0, str(arguments.models))
    loaders = importlib.import_module("loaders")
    record = json.loads(RECORD.read_text()) if RECORD.is_file() else {"nets": {}}
    record["command"] = f"python -m benchmarks.attack_order --sets {' '.join(arguments.sets)}"
    for name, radius in robust_nets(arguments.models / "index.json"):
        source = name.partition("/")[0]
        if name not in record["nets"] and source in arguments.sets:
            data = sp.load_data(source, n=arguments.images, root=str(arguments.data))
            record["nets"][name] = attacked(loaders.load(name), data.x, data.y, radius)
            write(RECORD, record)
            print(name, flush=True)
    record |= summary(record["nets"])
    write(RECORD, record)
    print({key: record[key] for key in ("order", "learned", "training", "test")})


def robust_nets(index: Path) -> list[tuple[str, float]]:
    """Names and radii of the robust nets of CIFAR-10 and MNIST."""
    found = []
    for entry in json.loads(index.read_text()):
        if entry["name"].startswith(("cifar10/", "mnist/")):
            radius = radius_of(entry)
            stated = entry.get("rob", {}).get(f"{radius:.4f}", 0.0)
            if stated >= _LEAST_ROBUST:
                found.append((entry["name"], radius))
    return found


def attacked(net: nn.Module, x: torch.Tensor, y: torch.Tensor, radius: float) -> dict[str, Any]:
    """Which images each attack breaks, and the passes that each image cost."""
    plan = prepare(AuditRequest(net, x, y, sp.Threat(sp.Linf(radius))))
    cells = plan.cells
    episodes = InProcess().attacks(plan, cells)
    joined: dict[str, dict[str, Any]] = {}
    for (_, number), episode in zip(cells, episodes, strict=True):
        name = plan.adversaries[number].name
        one = joined.setdefault(name, {"correct": [], "passes": []})
        one["correct"] += (episode.correct[0] >= 0.5).int().tolist()
        one["passes"] += (episode.forward + episode.backward).int().tolist()
    return {"radius": radius, "attacks": joined}


def summary(nets: Mapping[str, Any]) -> dict[str, Any]:
    """The learned order, and the passes per image of all orders on both halves."""
    ordinary = {name: net["attacks"] for name, net in nets.items()}
    plans = {tuple(results) for results in ordinary.values()}
    common = max(plans, key=lambda names: sum(tuple(r) == names for r in ordinary.values()))
    used = {name: results for name, results in ordinary.items() if tuple(results) == common}
    order = [name for name in common if name != "clean"]
    halves: list[list[str]] = [[], []]
    for source in ("cifar10/", "mnist/"):
        for k, name in enumerate(name for name in used if name.startswith(source)):
            halves[k % 2].append(name)
    training, test = ([used[name] for name in half] for half in halves)
    learned = greedy(training, order)
    return {
        "order": order,
        "learned": learned,
        "other_plans": sorted(set(ordinary) - set(used)),
        "training": {"nets": halves[0], **compared(training, order, learned)},
        "test": {"nets": halves[1], **compared(test, order, learned)},
    }


def greedy(nets: Sequence[Results], names: Sequence[str]) -> list[str]:
    """Repeatedly the attack that breaks most remaining images per pass; nets have equal weight."""
    left = [_correct(net, "clean") for net in nets]
    order: list[str] = []
    while len(order) < len(names):
        rest = [name for name in names if name not in order]
        gains = [_gain(nets, left, name) for name in rest]
        best = rest[gains.index(max(gains))]
        order.append(best)
        left = [alive & _correct(net, best) for net, alive in zip(nets, left, strict=True)]
    return order


def _gain(nets: Sequence[Results], left: Sequence[Bools], name: str) -> tuple[float, float]:
    """Images broken per pass; of attacks that break nothing more, the cheapest is first."""
    broken = 0.0
    passes = 0.0
    for net, alive in zip(nets, left, strict=True):
        broken += float((alive & ~_correct(net, name)).mean())
        passes += float((np.array(net[name]["passes"]) * alive).mean())
    return broken / max(passes, 1e-9), -passes


def _correct(net: Results, name: str) -> Bools:
    return np.array(net[name]["correct"], dtype=bool)


def compared(
    nets: Sequence[Results], order: Sequence[str], learned: Sequence[str]
) -> dict[str, Any]:
    """Mean passes per image over nets, by order."""
    best = min(itertools.permutations(order), key=lambda names: passes_in(nets, names))
    return {
        "passes_on_all_images": round(passes_on_all(nets, order), 2),
        "passes_in_plan_order": round(passes_in(nets, order), 2),
        "passes_in_learned_order": round(passes_in(nets, learned), 2),
        "passes_in_best_order": round(passes_in(nets, best), 2),
        "best_order": list(best),
    }


def passes_on_all(nets: Sequence[Results], names: Sequence[str]) -> float:
    """Passes per image if every attack runs on every image that is classified correctly."""
    return float(np.mean([sum(np.mean(net[name]["passes"]) for name in names) for net in nets]))


def passes_in(nets: Sequence[Results], names: Sequence[str]) -> float:
    """Passes per image if every attack runs on images that no earlier attack broke."""
    found = []
    for net in nets:
        alive = _correct(net, "clean")
        total = 0.0
        for name in names:
            total += float((np.array(net[name]["passes"]) * alive).mean())
            alive = alive & _correct(net, name)
        found.append(total)
    return float(np.mean(found))


if __name__ == "__main__":
    main()
