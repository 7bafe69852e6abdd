"""What an attack costs beyond the passes it makes, beside peers and beside a bare loop, as ratios in one process.

    python -m benchmarks --out benchmarks/records/speed.json

The unit is the time that a bare loop needs for the same number of forward and backward passes on the same net: 1.0 would be free.
Each contestant is run in turn, several rounds over, and the median of its ratios is kept, so that load on the machine strikes all
alike.
Peers that are not installed are left out; `pip install --no-deps -r tests/references/requirements.txt` installs them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from tests.references import peers
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import saddlepoint as sp

RADIUS = 0.05
STEPS = 40


class Net(nn.Module):
    """A small convolutional net for 32 x 32 images, of the size of the nets in the parity record."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 16, 4, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 4, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(2048, 100)
        )  # fmt: skip
        self.head = nn.Linear(100, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).relu())


def bare(net: nn.Module, x: Tensor, y: Tensor) -> None:
    """As many passes as PGD makes, and nothing else."""
    for _ in range(STEPS):
        live = x.clone().requires_grad_()
        torch.autograd.grad(cross_entropy(net(live), y, reduction="sum"), live)
    with torch.no_grad():
        net(x)


def ours(attack: object, space: sp.Ball) -> Callable[[nn.Module, Tensor, Tensor], None]:
    def run(net: nn.Module, x: Tensor, y: Tensor) -> None:
        adversary = sp.Direct("ours", attack, sp.cross_entropy)  # type: ignore[arg-type]
        sp.play(sp.Plain(net), adversary, x, y, sp.Threat(space), batch_size=len(x))

    return run


def contestants() -> dict[str, Callable[[nn.Module, Tensor, Tensor], object]]:
    found: dict[str, Callable[[nn.Module, Tensor, Tensor], object]] = {
        "saddlepoint pgd-linf": ours(sp.PGD(STEPS, RADIUS / 10), sp.Linf(RADIUS)),
        "saddlepoint pgd-l2": ours(sp.PGD(STEPS), sp.L2(0.5)),
        "saddlepoint apgd-ce-linf": ours(sp.APGD(STEPS), sp.Linf(RADIUS)),
        "saddlepoint apgd-ce-l2": ours(sp.APGD(STEPS), sp.L2(0.5)),
    }
    budgets = {"pgd": {"steps": STEPS, "step": 0.1}, "apgd-ce": {"steps": STEPS, "restarts": 1}}
    for kind in ("pgd-linf", "pgd-l2", "apgd-ce-linf", "apgd-ce-l2"):
        for peer, attack in peers.ATTACKS[kind].items():
            if peers.why_missing(peer) is None:
                budget = budgets[kind.rpartition("-")[0]]
                radius = RADIUS if kind.endswith("linf") else 0.5
                found[f"{peer} {kind}"] = lambda net, x, y, a=attack, b=budget, r=radius: a(
                    net, x, y, r, seed=0, **b
                )
    return found


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--n", type=int, default=64, help="images per batch")
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--out", type=Path, help="write the ratios here as JSON")
    chosen = arguments.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = Net().eval()
    x = torch.rand(chosen.n, 3, 32, 32)
    y = net(x).argmax(1)
    for reason in filter(None, map(peers.why_missing, peers.MODULES)):
        print(f"left out: {reason}")
    ratios: dict[str, list[float]] = {name: [] for name in contestants()}
    for _ in range(chosen.rounds):
        for name, run in contestants().items():
            limit = _seconds(bare, net, x, y)
            taken = _seconds(run, net, x, y)
            ratios[name].append(taken / limit)
    medians = {name: round(statistics.median(values), 2) for name, values in ratios.items()}
    for name, ratio in sorted(medians.items(), key=lambda pair: (pair[0].split()[1], pair[1])):
        print(f"{name:45s} {ratio:6.2f}")
    if chosen.out:
        about = {
            "command": "python -m benchmarks",
            "unit": f"time of {STEPS} bare forward and backward passes",
            "n": chosen.n,
        }
        chosen.out.write_text(
            json.dumps({**about, "rounds": chosen.rounds, "ratios": medians}, indent=1) + "\n"
        )


def _seconds(
    run: Callable[[nn.Module, Tensor, Tensor], object], net: nn.Module, x: Tensor, y: Tensor
) -> float:
    start = time.process_time()
    run(net, x.clone(), y.clone())
    return time.process_time() - start


if __name__ == "__main__":
    main()
