"""Robust accuracy that peer libraries find on third-party nets, at the budgets listed here.

    python -m benchmarks.peer_accuracy --models DIR --data DIR --n 200 \\
        --out benchmarks/records/peers.json

Every cell is one net, one attack, one peer, seed 0, one batch of the first n test images, one
thread. The points that a peer returns are evaluated by a separate forward pass. An image counts as
broken if the clean image is classified correctly and the returned point is inside the ball and the
unit box and is misclassified. Cells that are already in the record are skipped, and the record is
written after each cell, so the command can be interrupted and started again.
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
# Different from the batch of the attacks, so that the check includes another order of summation.
SCORING_BATCH = 50


class Net(NamedTuple):
    """A third-party net and the radii at which it is attacked."""

    name: str
    linf: float
    l2: float


class Plan(NamedTuple):
    """An attack with its budget."""

    name: str
    kind: str  # key of `peers.ATTACKS`
    budget: dict[str, Any]
    peers: tuple[str, ...] = ()  # empty: every peer that has the attack

    @property
    def norm(self) -> float:
        """2 or infinity."""
        return 2 if self.kind.endswith("-l2") else math.inf

    @property
    def minimizes_norm(self) -> bool:
        """Whether the attack minimizes the distance, so that its distance is recorded."""
        return self.kind.startswith(("cw-", "fmn-"))


class Score(NamedTuple):
    """The evaluation of the points that an attack returned."""

    clean: Tensor  # [N] clean image classified correctly
    robust: Tensor  # [N] clean image classified correctly and not broken
    outside: Tensor  # [N] the returned point is outside the ball or the unit box
    repaired: Tensor  # [N] clean image misclassified, returned point classified correctly
    distance: Tensor  # [N] distance of the returned point if it is misclassified, else inf


# At the L2 radii, the robust accuracy of the nets under APGD with 20 steps is between a third and
# three quarters. The TRADES net is an exception: 96 % even at 2.0.
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

# Cheap attacks first, so that an interrupted run has results for every net.
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
    # AutoAttack's Square keeps the schedule of 10000 queries (rescaled False). The paper's schedule
    # is fitted to the budget.
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
    # ART's CW is compared at 20 steps, because each step is a line search of up to ten forward
    # passes.
    Plan("cw-20-l2", "cw-l2", {"searches": 9, "steps": 20, "rate": 0.01}),
    Plan("square-5000-linf", "square-linf", {"queries": 5000, "rescaled": False}),
    Plan("square-5000-l2", "square-l2", {"queries": 5000, "rescaled": False}),
    Plan("autoattack-linf", "autoattack-linf", {}),
)


def main() -> None:
    """Measure all missing cells and add them to the record."""
    arguments = parse_arguments()
    torch.set_num_threads(1)
    sys.path.insert(0, str(arguments.models))
    loaders = importlib.import_module("loaders")
    record = read_record(arguments.out, arguments.n)
    for reason in filter(None, map(peers.why_missing, peers.MODULES)):
        print(f"skipped: {reason}")
    for plan, net, peer in cells(arguments.only, arguments.nets):
        key = f"{net.name} {plan.name} {peer}"
        if key in record["cells"]:
            continue
        x, y = first_images(arguments.data, net.name.split("/")[0], arguments.n)
        cell = measure(loaders.load(net.name), plan, net, peer, x, y)
        record["cells"][key] = cell
        write(arguments.out, record)
        print(key, cell.get("robust_accuracy"), cell["seconds"], flush=True)


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_folders(parser, required=True)
    parser.add_argument(
        "--n", type=int, default=200, help="number of test images, from the first one"
    )
    parser.add_argument("--out", type=Path, required=True, help="record to write or to continue")
    parser.add_argument(
        "--only",
        nargs="+",
        default=[],
        choices=[plan.name for plan in PLANS],
        help="only these attacks",
    )
    parser.add_argument(
        "--nets", nargs="+", default=[], choices=[net.name for net in NETS], help="only these nets"
    )
    return parser.parse_args()


def add_folders(parser: argparse.ArgumentParser, *, required: bool) -> None:
    """Add the options `--models` and `--data`."""
    parser.add_argument(
        "--models", type=Path, required=required, help="folder with loaders.py and the checkpoints"
    )
    parser.add_argument(
        "--data", type=Path, required=required, help="folder with cifar-10-batches-bin and mnist"
    )


def cells(only: list[str], nets: list[str]) -> Iterator[tuple[Plan, Net, str]]:
    """The cells to measure, in order, without peers that are not installed."""
    installed = [peer for peer in peers.MODULES if peers.why_missing(peer) is None]
    for plan in PLANS:
        for net in NETS:
            if (plan.name in only or not only) and (net.name in nets or not nets):
                candidates = plan.peers or peers.ATTACKS[plan.kind]
                yield from ((plan, net, peer) for peer in candidates if peer in installed)


def measure(
    model: nn.Module, plan: Plan, net: Net, peer: str, x: Tensor, y: Tensor
) -> dict[str, Any]:
    """Run one attack and evaluate its points."""
    radius = net.l2 if plan.norm == 2 else net.linf
    cell: dict[str, Any] = {
        "net": net.name,
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
        points = peers.ATTACKS[plan.kind][peer](
            model, x.clone(), y.clone(), radius, seed=SEED, **plan.budget
        )
    # A peer that fails is a result; the other cells must still run.
    except Exception as failure:
        return cell | {"failed": f"{type(failure).__name__}: {failure}", "seconds": since(start)}
    cell["seconds"] = since(start)
    score = score_points(model, x, y, points, plan.norm, radius)
    cell |= {
        "clean_accuracy": score.clean.double().mean().item(),
        "robust_accuracy": score.robust.double().mean().item(),
        "robust": bits(score.robust),
        "outside": int((score.outside & score.clean).sum()),
        "repaired": int(score.repaired.sum()),
    }
    if plan.minimizes_norm:
        cell["median_distance"] = finite(score.distance[score.clean].median().item())
    return cell


@torch.no_grad()
def score_points(
    model: nn.Module, x: Tensor, y: Tensor, points: Tensor, norm: float, radius: float
) -> Score:
    """Evaluate points with a separate forward pass.

    The tolerance of 1e-6 + 1e-5 radius allows for float32 rounding: half a unit in the last place
    of a pixel near 1 is 6e-8, and a sum of 3072 squares has a relative error of about 1e-6.
    """
    length = torch.linalg.vector_norm((points - x).flatten(1).double(), ord=norm, dim=1)  # [N]
    overshoot = torch.maximum(-points, points - 1).flatten(1).amax(dim=1)  # [N]
    outside = (
        (length > radius + 1e-6 + 1e-5 * radius)
        | (overshoot > 1e-6)
        | ~points.flatten(1).isfinite().all(dim=1)
    )
    clean = predictions(model, x) == y
    correct = predictions(model, points) == y
    return Score(
        clean=clean,
        robust=clean & (correct | outside),
        outside=outside,
        repaired=~clean & correct,
        distance=torch.where(correct, math.inf, length),
    )


def predictions(model: nn.Module, x: Tensor) -> Tensor:
    """Predicted labels, in batches of `SCORING_BATCH`."""
    batches = (x[start : start + SCORING_BATCH] for start in range(0, len(x), SCORING_BATCH))
    return torch.cat([model(batch).argmax(dim=1) for batch in batches])


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
        images = read_idx(folder / "t10k-images-idx3-ubyte.gz", header=16)
        images = images.reshape(-1, 1, 28, 28)[:n]
        labels = read_idx(folder / "t10k-labels-idx1-ubyte.gz", header=8)[:n]
    x = torch.from_numpy(images.astype(np.float32) / 255)
    return x, torch.from_numpy(labels.astype(np.int64))


def read_idx(file: Path, header: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The bytes of a gzipped IDX file after its header."""
    return np.frombuffer(gzip.decompress(file.read_bytes()), dtype=np.uint8, offset=header)


def read_record(file: Path, n: int) -> dict[str, Any]:
    """Read the record, or create an empty one.

    Raises:
        ValueError: The record was measured with another number of images.
    """
    if not file.exists():
        return {"about": about(), "notes": [], "cells": {}}
    record: dict[str, Any] = json.loads(file.read_text())
    different = {cell["n"] for cell in record["cells"].values()} - {n}
    if different:
        raise ValueError(
            f"{file} was measured with n={different.pop()}, but --n is {n}. Specify another --out."
        )
    return record


def about() -> dict[str, Any]:
    """How the record was measured, and the meaning of its fields."""
    return {
        "command": "python -m benchmarks.peer_accuracy --models DIR --data DIR --n 200 --out FILE",
        "robust": "one bit per image, the first image is the highest bit of the first hex digit; "
        "1 means not broken",
        "outside": "clean-correct images with a returned point outside the ball or the box; not "
        "counted as broken",
        "repaired": "images misclassified when clean and classified correctly at the returned "
        "point",
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
        }
        | peers.versions(),
    }


def write(file: Path, record: dict[str, Any]) -> None:
    """Replace the record atomically, so that an interruption keeps the old one."""
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(record, indent=1) + "\n")
    unfinished.replace(file)


def bits(mask: Tensor) -> str:
    """A boolean mask [N] as hexadecimal digits."""
    return np.packbits(mask.numpy()).tobytes().hex()


def finite(value: float) -> float | None:
    """The value, or None if it is not finite."""
    return value if math.isfinite(value) else None


def since(start: float) -> float:
    """Seconds since `start`, rounded."""
    return round(time.perf_counter() - start, 2)


if __name__ == "__main__":
    main()
