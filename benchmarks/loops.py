"""PGD and APGD against a bare loop with the same number of passes, and against peers.

    python -m benchmarks.loops [--models DIR --data DIR] [--nets NAMES] [--steps N] [--rounds N]
        [--peers N]

The bare loop makes the passes and the plainest step and projection: no best points, no history, no
meter, and for L2 and L1 no exact projection onto ball and box but a rescaled perturbation. CPU time
with one thread, alternately in one process, as ratios. With `--models` and `--data` the nets are
those of the parity record with the first 128 test images, else a small net and random images.

`--peers N` also compares with other libraries in N rounds: attacks with the same number of steps on
images with the labels that the net predicts, because some peers leave out images that are
misclassified. Peers that are not installed are skipped.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from benchmarks.peer_accuracy import NETS, Net, add_folders, first_images
from benchmarks.peer_times import beside_peers, peer_runs, seconds
from torch import Tensor, nn

import saddlepoint as sp
from saddlepoint.attacks.apgd import APGD
from saddlepoint.attacks.losses import cross_entropy
from saddlepoint.attacks.spaces import Radii
from saddlepoint.defenses import Plain
from saddlepoint.evaluation import Direct, Threat
from saddlepoint.evaluation.attack_context import AttackContext

RECORD = Path(__file__).parent / "records" / "loops.json"
L1_RADIUS = {"cifar10": 12.0, "mnist": 10.0}
SMALL = Net("small net", linf=8 / 255, l2=0.5)


class Problem(NamedTuple):
    """A net with images, and the sets in which it is attacked."""

    name: str
    net: nn.Module
    x: Tensor  # [N, ...]
    y: Tensor  # [N]
    spaces: tuple[sp.Ball, ...]


def small_net() -> nn.Module:
    """Two convolutions and a linear layer."""
    torch.manual_seed(0)
    convolutions = nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU()
    net = nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(2048, 10))
    return net.eval().requires_grad_(False)


def bare(net: nn.Module, x: Tensor, y: Tensor, space: sp.Ball, steps: int) -> None:
    """Gradient steps and nothing else."""
    radius = space.radius
    z = x.clone()
    for _ in range(steps):
        z.requires_grad_()
        loss = nn.functional.cross_entropy(net(z), y, reduction="sum")
        (grad,) = torch.autograd.grad(loss, z)
        z = z.detach()
        if space.p == torch.inf:
            z = torch.clamp(z + 0.1 * radius * grad.sign(), x - radius, x + radius).clamp(0, 1)
        else:
            z = z + 0.1 * radius * grad / _lengths(grad, space.p)
            delta = z - x
            z = (x + delta * (radius / _lengths(delta, space.p)).clamp(max=1)).clamp(0, 1)
    with torch.no_grad():
        net(z)


def _lengths(v: Tensor, p: float) -> Tensor:
    return v.flatten(1).norm(p, dim=1).clamp(min=1e-12).view(-1, 1, 1, 1)


def attack(problem: Problem, space: sp.Ball, kind: sp.PGD | APGD) -> None:
    """An attack of this library."""
    context = AttackContext.open(Threat(space), torch.arange(len(problem.x)), 0)
    direct = Direct("attack", kind, loss=cross_entropy)
    direct.move(context, Plain(problem.net), problem.x, problem.y)


def ratios(problem: Problem, space: sp.Ball, steps: int, rounds: int) -> dict[str, list[float]]:
    """The time of each attack relative to the bare loops before and after it, sorted."""
    kinds = {"PGD": sp.PGD(steps), "APGD": APGD(steps)}
    found: dict[str, list[float]] = {name: [] for name in kinds}

    def reference() -> float:
        return seconds(lambda: bare(problem.net, problem.x, problem.y, space, steps))

    reference()
    before = reference()
    for _ in range(rounds):
        for name, kind in kinds.items():
            own = seconds(lambda kind=kind: attack(problem, space, kind))  # type: ignore[misc]
            after = reference()
            found[name].append(2 * own / (before + after))
            before = after
    return {name: sorted(round(ratio, 3) for ratio in values) for name, values in found.items()}


def peers(problem: Problem, steps: int, rounds: int) -> dict[str, object]:
    """The time of each attack relative to peers that have it, by attack and set."""
    with torch.no_grad():
        predicted = problem._replace(y=problem.net(problem.x).argmax(1))
    found = {}
    for space in problem.spaces:
        norm = str(space).split()[0].lower()
        kinds = {"pgd": sp.PGD(steps, Radii(0.1)), "apgd-ce": APGD(steps)}
        for kind, own in kinds.items():
            others = peer_runs(
                f"{kind}-{norm}", problem.net, problem.x, predicted.y, space.radius, steps
            )
            if others:
                name = f"{type(own).__name__}, {space}"
                found[name] = beside_peers(
                    lambda own=own, space=space: attack(predicted, space, own),  # type: ignore[misc]
                    others,
                    rounds,
                )
                print(problem.name, name, found[name]["fastest"], found[name]["ratio"], flush=True)
    return found


def problems(arguments: argparse.Namespace) -> Iterator[Problem]:
    """The nets that are measured."""
    if not arguments.models:
        net = small_net()
        x = torch.rand(arguments.images, 3, 32, 32)
        yield Problem(SMALL.name, net, x, net(x).argmax(1), _spaces(SMALL, 12.0))
        return
    sys.path.insert(0, str(arguments.models))
    loaders = importlib.import_module("loaders")
    for one in NETS:
        data = one.name.split("/")[0]
        if not arguments.nets or one.name in arguments.nets:
            x, y = first_images(arguments.data, data, arguments.images)
            yield Problem(one.name, loaders.load(one.name), x, y, _spaces(one, L1_RADIUS[data]))


def _spaces(net: Net, l1: float) -> tuple[sp.Ball, ...]:
    return sp.Linf(net.linf), sp.L2(net.l2), sp.L1(l1)


def main() -> None:
    """Measure, and add the results to the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_folders(parser, required=False)
    parser.add_argument("--nets", nargs="+", default=[], choices=[net.name for net in NETS])
    parser.add_argument("--images", type=int, default=128, help="images of the batch")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=5, help="of bare loops; 0: none")
    parser.add_argument("--peers", type=int, default=0, help="rounds of peers; default 0, none")
    parser.add_argument("--out", type=Path, default=RECORD, help="record to add the results to")
    options = parser.parse_args()
    torch.set_num_threads(1)
    record = json.loads(options.out.read_text()) if options.out.exists() else {}
    for problem in problems(options):
        entry = record.get(problem.name, {})
        entry |= {"images": options.images, "steps": options.steps}
        if options.rounds:
            entry["rounds"] = options.rounds
        for space in problem.spaces if options.rounds else ():
            for name, values in ratios(problem, space, options.steps, options.rounds).items():
                median = round(statistics.median(values), 2)
                entry[f"{name}, {space}"] = {"ratio": median, "ratios": values}
                print(problem.name, name, space, median, flush=True)
        if options.peers:
            entry["peers"] = peers(problem, options.steps, options.peers)
        record[problem.name] = entry
        options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
