"""Robust accuracy that peer libraries find on nets others trained, at budgets written down here.

    python -m benchmarks.peer_accuracy --models DIR --data DIR --n 200 --out benchmarks/records/peers.json

Every cell is one net, one attack, one peer, seed 0, one batch of the first n test images, one thread. The points a peer
returns are scored again by a separate forward pass: an image counts as broken if the clean image was classified right
and the returned point is inside the ball and the unit box and classified wrong. Cells already in the record are
skipped, and the record is written after each cell, so the command can be stopped and started again.
"""

from __future__ import annotations

import argparse
import gzip
import importlib
import json
import math
import platform
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from tests.references import peers
from torch import Tensor, nn

SEED = 0
SCORING_BATCH = (
    50  # not the attacks' batch, so that a different order of summation is part of the check
)


class Net(NamedTuple):
    name: str
    linf: float
    l2: float


class Plan(NamedTuple):
    name: str
    kind: str
    budget: dict[str, Any]
    peers: tuple[str, ...] = ()  # empty: every peer that has the attack

    @property
    def norm(self) -> float:
        return 2 if self.kind.endswith("-l2") else math.inf

    @property
    def minimizes(self) -> bool:
        """Whether the attack looks for the nearest adversarial point, so that its distance is worth recording."""
        return self.kind.startswith(("cw-", "fmn-"))


class Score(NamedTuple):
    clean: Tensor  # [N] right on the clean image
    robust: Tensor  # [N] right on the clean image, and not broken
    outside: Tensor  # [N] the returned point is outside the ball or the unit box
    repaired: Tensor  # [N] wrong on the clean image, right on the returned point
    distance: Tensor  # [N] to the returned point if it is misclassified, else inf


# At the L2 radii, APGD with 20 steps leaves the nets between a third and three quarters of their images; only the
# TRADES net keeps 96 % even at 2.0.
NETS = (
    Net("cifar10/eran_conv_small_pgd", linf=2 / 255, l2=0.35),
    Net("cifar10/sdp_cnn_a_adv", linf=2 / 255, l2=0.35),
    Net("cifar10/oval_kw_wide", linf=2 / 255, l2=0.35),
    Net("cifar10/vit_pgd_2_3_16", linf=2 / 255, l2=0.35),
    Net("cifar10/abcrown_resnet2b", linf=2 / 255, l2=0.35),
    Net("cifar10/abcrown_resnet4b", linf=2 / 255, l2=0.35),
    Net("mnist/rsl18a_linf01", linf=0.1, l2=1.5),
    Net("mnist/cora_trades", linf=0.1, l2=1.5),
    Net("mnist/trades_smallcnn_beta5", linf=0.3, l2=2.0),
)

PGD = {"steps": 40, "step": 0.1}  # the step is a fraction of the radius
APGD = {"steps": 100, "restarts": 1}
TARGETED = {"steps": 100, "targets": 9}
FAB = {"steps": 100, "restarts": 1}
FMN = {"steps": 200}

# Cheap first, so that a run that is stopped early has a row for every net.
PLANS = (
    Plan("pgd-linf", "pgd-linf", PGD),
    Plan("pgd-l2", "pgd-l2", PGD),
    Plan("apgd-ce-linf", "apgd-ce-linf", APGD),
    Plan("apgd-dlr-linf", "apgd-dlr-linf", APGD),
    Plan("apgd-ce-l2", "apgd-ce-l2", APGD),
    Plan("apgd-dlr-l2", "apgd-dlr-l2", APGD),
    Plan("fmn-linf", "fmn-linf", FMN),
    Plan("fmn-l2", "fmn-l2", FMN),
    Plan("apgd-t-linf", "apgd-t-linf", TARGETED),
    Plan("apgd-t-l2", "apgd-t-l2", TARGETED),
    # AutoAttack's Square keeps the schedule of 10000 queries (rescaled False); the paper's is fitted to the budget.
    Plan("square-1000-linf", "square-linf", {"queries": 1000, "rescaled": True}),
    Plan(
        "cw-l2",
        "cw-l2",
        {"searches": 9, "steps": 200, "rate": 0.01},
        ("adv-lib", "foolbox", "torchattacks"),
    ),
    Plan("fab-linf", "fab-linf", FAB),
    Plan("fab-l2", "fab-l2", FAB),
    Plan("fab-t-linf", "fab-t-linf", TARGETED),
    Plan("fab-t-l2", "fab-t-l2", TARGETED),
    # One step of ART's CW is a line search of up to ten forward passes, which is why it is compared at 20 steps.
    Plan("cw-20-l2", "cw-l2", {"searches": 9, "steps": 20, "rate": 0.01}),
    Plan("square-5000-linf", "square-linf", {"queries": 5000, "rescaled": False}),
    Plan("square-5000-l2", "square-l2", {"queries": 5000, "rescaled": False}),
    Plan("autoattack-linf", "autoattack-linf", {}),
)


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument(
        "--models", type=Path, required=True, help="directory with loaders.py and the checkpoints"
    )
    arguments.add_argument(
        "--data", type=Path, required=True, help="directory with cifar-10-batches-bin and mnist"
    )
    arguments.add_argument(
        "--n", type=int, default=200, help="how many test images, from the first"
    )
    arguments.add_argument(
        "--out", type=Path, required=True, help="the record to write, or to go on with"
    )
    arguments.add_argument(
        "--only",
        nargs="+",
        default=[],
        choices=[plan.name for plan in PLANS],
        help="these plans only",
    )
    arguments.add_argument(
        "--nets", nargs="+", default=[], choices=[net.name for net in NETS], help="these nets only"
    )
    chosen = arguments.parse_args()

    torch.set_num_threads(1)
    sys.path.insert(0, str(chosen.models))
    loaders = importlib.import_module("loaders")
    record = opened(chosen.out, chosen.n)
    for reason in filter(None, map(peers.why_missing, peers.MODULES)):
        print(f"skipped: {reason}")
    for plan, net, peer in cells(chosen.only, chosen.nets):
        key = f"{net.name} {plan.name} {peer}"
        if key in record["cells"]:
            continue
        x, y = first_images(chosen.data, net.name.split("/")[0], chosen.n)
        record["cells"][key] = measured(loaders.load(net.name), plan, net, peer, x, y)
        write(chosen.out, record)
        print(
            key,
            record["cells"][key].get("robust_accuracy"),
            record["cells"][key]["seconds"],
            flush=True,
        )


def cells(only: list[str], nets: list[str]) -> Iterator[tuple[Plan, Net, str]]:
    """What to measure, in order, without the peers that are not installed."""
    present = [peer for peer in peers.MODULES if peers.why_missing(peer) is None]
    for plan in PLANS:
        for net in NETS:
            if (plan.name in only or not only) and (net.name in nets or not nets):
                for peer in plan.peers or peers.ATTACKS[plan.kind]:
                    if peer in present:
                        yield plan, net, peer


def measured(
    net: nn.Module, plan: Plan, where: Net, peer: str, x: Tensor, y: Tensor
) -> dict[str, Any]:
    """One cell: the attack, timed, and what its points are worth."""
    radius = where.l2 if plan.norm == 2 else where.linf
    cell: dict[str, Any] = {
        "net": where.name,
        "attack": plan.name,
        "peer": peer,
        "version": peers.versions()[peer],
        "radius": radius,
        "budget": plan.budget,
        "seed": SEED,
        "n": len(x),
    }
    start = time.perf_counter()
    try:
        found = peers.ATTACKS[plan.kind][peer](
            net, x.clone(), y.clone(), radius, seed=SEED, **plan.budget
        )
    except (
        Exception
    ) as failure:  # a peer that cannot run is a result, not a reason to lose the other cells
        return cell | {"failed": f"{type(failure).__name__}: {failure}", "seconds": since(start)}
    cell["seconds"] = since(start)
    score = scored(net, x, y, found, plan.norm, radius)
    cell |= {
        "clean_accuracy": score.clean.double().mean().item(),
        "robust_accuracy": score.robust.double().mean().item(),
        "robust": bits(score.robust),
        "outside": int((score.outside & score.clean).sum()),
        "repaired": int(score.repaired.sum()),
    }
    if plan.minimizes:
        cell["median_distance"] = finite(score.distance[score.clean].median().item())
    return cell


@torch.no_grad()
def scored(
    net: nn.Module, x: Tensor, y: Tensor, found: Tensor, norm: float, radius: float
) -> Score:
    """What the points are worth by a forward pass of our own.

    The tolerance of 1e-6 + 1e-5 radius is float32 rounding: half a unit in the last place of a pixel near 1 is 6e-8,
    and a sum of 3072 squares loses a relative 1e-6 or so.
    """
    length = torch.linalg.vector_norm((found - x).flatten(1).double(), ord=norm, dim=1)  # [N]
    overshoot = torch.maximum(-found, found - 1).flatten(1).amax(dim=1)  # [N]
    outside = (
        (length > radius + 1e-6 + 1e-5 * radius)
        | (overshoot > 1e-6)
        | ~found.flatten(1).isfinite().all(dim=1)
    )
    clean = predictions(net, x) == y
    right = predictions(net, found) == y
    return Score(
        clean=clean,
        robust=clean & (right | outside),
        outside=outside,
        repaired=~clean & right,
        distance=torch.where(right, math.inf, length),
    )


def predictions(net: nn.Module, x: Tensor) -> Tensor:
    batches = (x[start : start + SCORING_BATCH] for start in range(0, len(x), SCORING_BATCH))
    return torch.cat([net(batch).argmax(dim=1) for batch in batches])


def first_images(data: Path, name: str, n: int) -> tuple[Tensor, Tensor]:
    """The first n test images in [0, 1] and their labels."""
    if name == "cifar10":
        rows = np.fromfile(
            data / "cifar-10-batches-bin" / "test_batch.bin", dtype=np.uint8
        ).reshape(-1, 3073)[:n]
        images = rows[:, 1:].reshape(-1, 3, 32, 32)
        labels = rows[:, 0]
    else:
        folder = data / "mnist"
        images = idx(folder / "t10k-images-idx3-ubyte.gz", header=16).reshape(-1, 1, 28, 28)[:n]
        labels = idx(folder / "t10k-labels-idx1-ubyte.gz", header=8)[:n]
    return torch.from_numpy(images.astype(np.float32) / 255), torch.from_numpy(
        labels.astype(np.int64)
    )


def idx(file: Path, header: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.frombuffer(gzip.decompress(file.read_bytes()), dtype=np.uint8, offset=header)


def opened(file: Path, n: int) -> dict[str, Any]:
    """The record so far, or an empty one."""
    if not file.exists():
        return {"about": about(), "notes": [], "cells": {}}
    record: dict[str, Any] = json.loads(file.read_text())
    different = {cell["n"] for cell in record["cells"].values()} - {n}
    if different:
        raise ValueError(
            f"{file} was measured with n={different.pop()}, asked for n={n}. Give another --out."
        )
    return record


def about() -> dict[str, Any]:
    return {
        "command": "python -m benchmarks.peer_accuracy --models DIR --data DIR --n 200 --out FILE",
        "robust": "one bit per image, the first image is the highest bit of the first hex digit; 1 means not broken",
        "outside": "clean-correct images whose returned point is outside the ball or the box; not counted as broken",
        "repaired": "images classified wrong when clean and right at the returned point",
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
        }
        | peers.versions(),
    }


def write(file: Path, record: dict[str, Any]) -> None:
    """Replace the record in one step, so that a stop in the middle leaves the old one."""
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(record, indent=1) + "\n")
    unfinished.replace(file)


def bits(mask: Tensor) -> str:
    return np.packbits(mask.numpy()).tobytes().hex()


def finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def since(start: float) -> float:
    return round(time.perf_counter() - start, 2)


if __name__ == "__main__":
    main()
