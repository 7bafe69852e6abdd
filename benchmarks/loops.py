"""PGD and APGD against a bare loop with the same number of passes.

    python -m benchmarks.loops [--steps N] [--rounds N]

The bare loop makes the passes and the plainest step and projection: no best points, no history, no
meter, and for L2 and L1 no exact projection onto ball and box. CPU time on a small net with 64
images of 32 x 32 pixels and one thread, alternately in one process, as ratios.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import torch
from torch import Tensor, nn

import saddlepoint as sp
from saddlepoint.attacks.apgd import APGD
from saddlepoint.attacks.losses import cross_entropy
from saddlepoint.defenses import Plain
from saddlepoint.evaluation import Direct, Threat
from saddlepoint.evaluation.attack_context import AttackContext

RECORD = Path(__file__).parent / "records" / "loops.json"


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
        if space.p == 2:
            z = z + 0.1 * radius * grad / _lengths(grad)
            delta = z - x
            z = (x + delta * (radius / _lengths(delta)).clamp(max=1)).clamp(0, 1)
        else:
            z = torch.clamp(z + 0.1 * radius * grad.sign(), x - radius, x + radius).clamp(0, 1)
    net(z)


def _lengths(v: Tensor) -> Tensor:
    return v.flatten(1).norm(dim=1).clamp(min=1e-12).view(-1, 1, 1, 1)


def main() -> None:
    """Measure and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    net = small_net()
    x = torch.rand(64, 3, 32, 32)
    y = net(x).argmax(1)
    record: dict[str, object] = {"steps": options.steps, "rounds": options.rounds}
    for space in (sp.Linf(8 / 255), sp.L2(0.5), sp.L1(12)):
        for name, attack in (("PGD", sp.PGD(options.steps)), ("APGD", APGD(options.steps))):
            ratios = []
            for _ in range(options.rounds):
                started = time.process_time()
                bare(net, x, y, space, options.steps)
                between = time.process_time()
                context = AttackContext.open(Threat(space), torch.arange(len(x)), 0)
                Direct(name, attack, loss=cross_entropy).move(context, Plain(net), x, y)
                ratios.append((time.process_time() - between) / (between - started))
            key = f"{name}, {space}"
            record[key] = [round(ratio, 2) for ratio in sorted(ratios)]
            print(key, round(statistics.median(ratios), 2), flush=True)
    RECORD.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
