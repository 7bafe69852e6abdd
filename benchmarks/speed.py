"""Run time of attacks relative to a bare loop of forward and backward passes, beside peers.

    python -m benchmarks --out benchmarks/records/speed.json
    python -m benchmarks --models DIR --data DIR --nets NAMES --out benchmarks/records/speed.json

With `--models` and `--data` the nets are those of the parity record with the first test images, at
the radii of that record; else it is a small net with random images. The unit is the time of a bare
loop with the same number of forward and backward passes on the same net: a ratio of 1.0 means no
overhead. All attacks run alternately in one process for several rounds, and the median ratio of
each is kept, so that load on the machine affects all of them alike. Peers that are not installed
are skipped. `pip install --no-deps -r tests/references/requirements.txt` installs them.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from benchmarks.peer_accuracy import NETS, Net, add_folders, first_images
from tests.references import peers
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import saddlepoint as sp
from saddlepoint.attacks.spaces import Ball
from saddlepoint.evaluation.referee import play

SMALL = Net("small net", linf=0.05, l2=0.5)
STEPS = 40

Attack = Callable[[nn.Module, Tensor, Tensor], object]  # (net, images, labels)


class SmallConvNet(nn.Module):
    """A small convolutional net for 32x32 images, of the size of the nets in the parity record."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 16, 4, 2, 1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 4, 2, 1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(2048, 100),
        )
        self.head = nn.Linear(100, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).relu())


def bare_loop(net: nn.Module, x: Tensor, y: Tensor) -> None:
    """As many passes as PGD makes, and nothing else."""
    for _ in range(STEPS):
        with_gradient = x.clone().requires_grad_()
        loss = cross_entropy(net(with_gradient), y, reduction="sum")
        torch.autograd.grad(loss, with_gradient)
    with torch.no_grad():
        net(x)


def saddlepoint_attack(attack: object, space: Ball) -> Attack:
    """An attack of this library as a function."""

    def run(net: nn.Module, x: Tensor, y: Tensor) -> None:
        adversary = sp.Direct("ours", attack, sp.cross_entropy)  # type: ignore[arg-type]
        play(sp.Plain(net), adversary, x, y, sp.Threat(space), batch_size=len(x))

    return run


def all_attacks(one: Net) -> dict[str, Attack]:
    """The attacks of this library and of the installed peers, by name."""
    linf = sp.Linf(one.linf)
    l2 = sp.L2(one.l2)
    found: dict[str, Attack] = {
        "saddlepoint pgd-linf": saddlepoint_attack(sp.PGD(STEPS, one.linf / 10), linf),
        "saddlepoint pgd-l2": saddlepoint_attack(sp.PGD(STEPS), l2),
        "saddlepoint apgd-ce-linf": saddlepoint_attack(sp.APGD(STEPS), linf),
        "saddlepoint apgd-ce-l2": saddlepoint_attack(sp.APGD(STEPS), l2),
    }
    budgets = {"pgd": {"steps": STEPS, "step": 0.1}, "apgd-ce": {"steps": STEPS, "restarts": 1}}
    for kind in ("pgd-linf", "pgd-l2", "apgd-ce-linf", "apgd-ce-l2"):
        for peer, attack in peers.ATTACKS[kind].items():
            if peers.why_missing(peer) is None:
                budget = budgets[kind.rpartition("-")[0]]
                radius = one.linf if kind.endswith("linf") else one.l2
                found[f"{peer} {kind}"] = lambda net, x, y, a=attack, b=budget, r=radius: a(
                    net, x, y, r, seed=0, **b
                )
    return found


def measured(net: nn.Module, x: Tensor, y: Tensor, one: Net, rounds: int) -> dict[str, float]:
    """The median ratio of each attack."""
    attacks = all_attacks(one)
    ratios: dict[str, list[float]] = {name: [] for name in attacks}
    for _ in range(rounds):
        for name, run in attacks.items():
            reference = _seconds(bare_loop, net, x, y)
            ratios[name].append(_seconds(run, net, x, y) / reference)
    medians = {name: round(statistics.median(values), 2) for name, values in ratios.items()}
    for name, ratio in sorted(medians.items(), key=lambda pair: (pair[0].split()[1], pair[1])):
        print(f"{name:45s} {ratio:6.2f}", flush=True)
    return medians


def problems(arguments: argparse.Namespace) -> Iterator[tuple[Net, nn.Module, Tensor, Tensor]]:
    """The nets that are measured, with images and labels."""
    if not arguments.models:
        torch.manual_seed(0)
        net = SmallConvNet().eval()
        x = torch.rand(arguments.n, 3, 32, 32)
        yield SMALL, net, x, net(x).argmax(1)
        return
    sys.path.insert(0, str(arguments.models))
    loaders = importlib.import_module("loaders")
    for one in NETS:
        if not arguments.nets or one.name in arguments.nets:
            images = first_images(arguments.data, one.name.split("/")[0], arguments.n)
            yield one, loaders.load(one.name), *images


def main() -> None:
    """Measure all attacks, print the ratios and add them to the record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_folders(parser, required=False)
    parser.add_argument("--nets", nargs="+", default=[], choices=[net.name for net in NETS])
    parser.add_argument("--n", type=int, default=64, help="images per batch")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="add the ratios to this JSON file")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for reason in filter(None, map(peers.why_missing, peers.MODULES)):
        print(f"skipped: {reason}")
    for one, net, x, y in problems(arguments):
        print(one.name, flush=True)
        medians = measured(net, x, y, one, arguments.rounds)
        if arguments.out:
            _add(arguments.out, one.name, {"n": len(x), "rounds": arguments.rounds}, medians)


def _add(file: Path, name: str, about: dict[str, int], ratios: dict[str, float]) -> None:
    """Add the ratios of a net to the record."""
    record = json.loads(file.read_text()) if file.exists() else {}
    if "nets" not in record:
        unit = f"time of {STEPS} bare forward and backward passes"
        record = {"command": "python -m benchmarks", "unit": unit, "nets": {}}
    record["nets"][name] = {**about, "ratios": ratios}
    file.write_text(json.dumps(record, indent=1) + "\n")


def _seconds(run: Attack, net: nn.Module, x: Tensor, y: Tensor) -> float:
    """CPU time of one run."""
    start = time.process_time()
    run(net, x.clone(), y.clone())
    return time.process_time() - start


if __name__ == "__main__":
    main()
