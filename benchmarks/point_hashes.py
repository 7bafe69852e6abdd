"""Hashes of the points that attacks return, to compare two versions of the code.

    python -m benchmarks.point_hashes --out before.json
    python -m benchmarks.point_hashes --out after.json --compare before.json

A change that only makes attacks faster keeps every hash: the points, the loss curve and the counted
passes. Hashes depend on the processor and on the version of torch, so they are not committed. With
`--models` and `--data` the nets are those of the parity record with their first test images, else a
small net and random images.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from benchmarks.loops import Problem, problems
from benchmarks.peer_accuracy import NETS, add_folders
from torch import Tensor, nn

import saddlepoint as sp
from saddlepoint.attacks.apgd import APGD
from saddlepoint.attacks.losses import cross_entropy, margin
from saddlepoint.defenses import Context, Defense, Plain, Trace, View
from saddlepoint.evaluation import Direct, Threat
from saddlepoint.evaluation.attack_context import AttackContext
from saddlepoint.gradients import EoT

ATTACKS = (sp.PGD(12), sp.PGD(6, momentum=0.9), sp.PGD(6, random_start=False), APGD(25), APGD(6))
FEW = 16  # images of defenses that take several passes


class Quantized(Defense):
    """Rounds images in a step that gradients do not pass."""

    def __init__(self, net: nn.Module) -> None:
        self.net = net

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        rounded = ctx.through("round", lambda v: (v * 15).round() / 15, x)
        return Trace((View("final", self.net(rounded)),))


class Noisy(Defense):
    """Adds noise to images."""

    random = True

    def __init__(self, net: nn.Module) -> None:
        self.net = net

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        return Trace((View("final", self.net(x + 0.05 * ctx.randn_like(x))),))


class Centered(Defense):
    """Subtracts a part of the mean image of the batch, which couples its rows."""

    coupled = True

    def __init__(self, net: nn.Module) -> None:
        self.net = net

    def trace(self, x: Tensor, ctx: Context) -> Trace:  # noqa: ARG002
        return Trace((View("final", self.net(x - 0.3 * (x.mean(0, keepdim=True) - 0.5))),))


class Case(NamedTuple):
    """An attack on a defense."""

    name: str
    direct: Direct
    defense: Defense
    images: int | None = None  # the first ones; None: all


def cases(net: nn.Module) -> Iterator[Case]:
    """Every path through the loops: plain, early stopping, BPDA, EoT and coupled rows."""
    for attack in ATTACKS:
        plain = Direct("attack", attack, loss=cross_entropy)
        stopping = Direct("attack", attack, loss=margin, stop_at_success=True)
        yield Case(f"{attack}", plain, Plain(net))
        yield Case(f"{attack}, stopping", stopping, Plain(net))
        bpda = Direct("attack", attack, rules={"round": sp.BPDA()})
        yield Case(f"{attack}, BPDA", bpda, Quantized(net))
        eot = Direct("attack", attack, estimator=EoT(3))
        yield Case(f"{attack}, EoT", eot, Noisy(net), FEW)
        yield Case(f"{attack}, coupled", Direct("attack", attack), Centered(net), FEW)


def hashes(problem: Problem) -> dict[str, str]:
    """The hashes of all cases of a net."""
    found = {}
    for space in problem.spaces:
        for case in cases(problem.net):
            x = problem.x[: case.images]
            context = AttackContext.open(Threat(space), torch.arange(len(x)), 3)
            result = case.direct.move(context, case.defense, x, problem.y[: case.images])
            passes = context.meter.forward, context.meter.backward
            parts = (result.point, result.max_loss_point, context.history.loss_curve(), *passes)
            found[f"{problem.name}, {space}, {case.name}"] = " ".join(map(_hash, parts))
    return found


def _hash(values: Tensor) -> str:
    return hashlib.sha256(values.contiguous().numpy().tobytes()).hexdigest()[:12]


def differences(found: dict[str, str], before: dict[str, str]) -> list[str]:
    """The cases whose hashes differ, or that were not there before."""
    return [name for name, value in found.items() if before.get(name) != value]


def main() -> None:
    """Write the hashes, and compare them with earlier ones."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_folders(parser, required=False)
    parser.add_argument("--nets", nargs="+", default=[], choices=[net.name for net in NETS])
    parser.add_argument("--images", type=int, default=48, help="images of the batch")
    parser.add_argument("--out", type=Path, required=True, help="file to write")
    parser.add_argument("--compare", type=Path, help="hashes of another version")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    found = {name: each for one in problems(options) for name, each in hashes(one).items()}
    options.out.write_text(json.dumps(found, indent=1) + "\n")
    if options.compare:
        different = differences(found, json.loads(options.compare.read_text()))
        print("\n".join([*different, f"{len(different)} of {len(found)} cases differ"]))
        raise SystemExit(bool(different))


if __name__ == "__main__":
    main()
