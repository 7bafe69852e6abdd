"""The time of an exit game with seven exits beside independent attacks and evaluations.

    python -m benchmarks.exit_game_time --models DIR --data DIR

CPU time in one process with one thread. Independent means, for each of the 127 attacked subsets: a
bare PGD-10 loop, and one forward pass of its points for each of the 127 subsets that may answer. It
is measured for some subsets picked at random, before and after the games, and multiplied. The
record is `benchmarks/records/exit-game-time.json`, with an entry for each number of images.
"""

from __future__ import annotations

import argparse
import importlib
import json
import random
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from benchmarks.peer_accuracy import add_folders, write
from torch import Tensor, nn

from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import Linf, Radii
from saddlepoint.data import load_data
from saddlepoint.defenses import MultiExit, Subset, all_subsets
from saddlepoint.games.exit_game import exit_game

RECORD = Path(__file__).parent / "records" / "exit-game-time.json"
NET = "cifar10/triplewins_rdi_resnet38"
RADIUS = 8 / 255
STEPS = 10
GAMES = ("double-oracle", "all")


def main() -> None:
    """Measure both games and the independent attacks, and write the record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_folders(parser, required=True)
    parser.add_argument("--n", type=int, default=16)
    parser.add_argument("--sample", type=int, default=6, help="subsets attacked independently")
    parser.add_argument("--games", nargs="+", default=GAMES, choices=GAMES)
    parser.add_argument("--out", type=Path, default=RECORD)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    sys.path.insert(0, str(arguments.models))
    net: nn.Module = importlib.import_module("modules").load(NET).eval()
    images = load_data("cifar10", split="test", n=arguments.n, root=str(arguments.data))
    x, y = images
    with torch.no_grad():
        subsets = all_subsets(len(net(x[:1])))
    picked = random.Random(0).sample(subsets, 2 * arguments.sample)
    seconds, values, attacks = {}, {}, {}
    independent = [independent_seconds(net, x, y, one, subsets) for one in picked[::2]]
    for rows in arguments.games:
        started = time.process_time()
        game = exit_game(
            MultiExit(net), x, y, threat=Linf(RADIUS), attack=PGD(STEPS, Radii(1 / 4)), rows=rows
        )
        seconds[rows] = time.process_time() - started
        values[rows] = round(100 * game.value(), 3)
        attacks[rows] = len(game.targets)
    independent += [independent_seconds(net, x, y, one, subsets) for one in picked[1::2]]
    total = len(subsets) * statistics.mean(independent)
    found: dict[str, Any] = {
        "steps": STEPS,
        "independent_cpu_seconds": round(total, 1),
        "independent_spread": round(max(independent) / min(independent), 2),
        "attacks": attacks,
        "values": values,
        "cpu_seconds": {rows: round(one, 1) for rows, one in seconds.items()},
        "ratios": {rows: round(one / total, 3) for rows, one in seconds.items()},
    }
    print(found)
    record = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    record["command"] = "python -m benchmarks.exit_game_time"
    write(arguments.out, {**record, "net": NET, f"{arguments.n} images": found})


def independent_seconds(
    net: nn.Module, x: Tensor, y: Tensor, subset: Subset, subsets: tuple[Subset, ...]
) -> float:
    """CPU seconds of one attack on a subset, and of one evaluation of every subset."""
    started = time.process_time()
    z = x.clone()
    for _ in range(STEPS):
        z.requires_grad_()
        exits = net(z)
        losses = [nn.functional.cross_entropy(exits[k - 1], y) for k in subset]
        (gradient,) = torch.autograd.grad(torch.stack(losses).sum(), z)
        z = z.detach() + RADIUS / 4 * gradient.sign()
        z = torch.clamp(z.clamp(x - RADIUS, x + RADIUS), 0, 1)
    with torch.no_grad():
        for answer in subsets:
            logits = net(z)
            torch.stack([logits[k - 1].softmax(1) for k in answer]).mean(0).argmax(1)
    return time.process_time() - started


if __name__ == "__main__":
    main()
