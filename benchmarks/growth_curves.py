"""How the time of attacks grows with exits, solver steps, purifier steps and models.

    python -m benchmarks.growth_curves [--images N] [--rounds N]

For each size, the CPU time of PGD-10 on an embedded network, and the floor: the bare time of the
passes that the attack makes. One process, one thread; medians over rounds that alternate between
the attack and its floor. The record is `benchmarks/records/growth-curves.json`, the figures are in
`docs/speed/`. Growth with the number of images is measured by `python -m benchmarks.growth`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import saddlepoint as sp
from saddlepoint import zoo
from saddlepoint.defenses import Broyden, Context, Defense, MultiExit, Plain, all_subsets
from saddlepoint.evaluation.attack_context import AttackContext
from saddlepoint.papers.charts import draw_svg
from saddlepoint.papers.result import Plot
from saddlepoint.rng import Keys
from saddlepoint.zoo.adaptive import AntiAdversary
from saddlepoint.zoo.deq import DEQ

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "benchmarks" / "records" / "growth-curves.json"
FIGURES = ROOT / "docs" / "speed"
STEPS = 10
THREAT = sp.Threat(sp.Linf(0.15))


@dataclass(frozen=True)
class Measured:
    """An attack, and the bare passes that it cannot do without."""

    attack: Callable[[], object]
    floor: Callable[[], object]


@dataclass(frozen=True)
class Curve:
    """Sizes of one kind, and what is measured at each of them."""

    name: str
    across: str  # label of the sizes
    sizes: tuple[int, ...]
    at: Callable[[int], Measured]


def curves(x: Tensor, y: Tensor) -> tuple[Curve, ...]:
    """All curves on the images x [N, ...] with the labels y [N]."""
    net = zoo.load("digits-pgd")
    deq = zoo.target("digits-deq-exact")
    assert isinstance(deq, DEQ)
    many_exits = zoo.load("digits-exits")

    def solver(steps: int) -> Measured:
        method = Broyden(steps=steps, tolerance=0)
        return attack_on([DEQ(deq.net, method=method, after=deq.after)], x, y)

    def game(exits: int) -> Measured:
        defense = MultiExit(_FirstExits(many_exits, exits))
        attacks = len(all_subsets(exits))
        return Measured(
            lambda: sp.exit_game(defense, x, y, threat=THREAT.space, attack=sp.PGD(STEPS)),
            lambda: bare_passes(defense, x, y, STEPS * attacks, 2 * attacks),
        )

    return (
        Curve("solver", "solver steps", (4, 8, 16, 32), solver),
        Curve(
            "purifier",
            "purifier steps",
            (1, 2, 4, 8, 16),
            lambda steps: attack_on([AntiAdversary(net, steps=steps)], x, y),
        ),
        Curve(
            "models",
            "models in an ensemble",
            (1, 2, 4, 8, 16),
            lambda count: attack_on([Plain(net)] * count, x, y),
        ),
        Curve("exits", "exits", (1, 2, 3, 4), game),
    )


def attack_on(models: Sequence[Defense], x: Tensor, y: Tensor) -> Measured:
    """PGD-10 on one or several models, and its passes."""
    attack = sp.Direct("pgd", sp.PGD(STEPS), loss=sp.cross_entropy)

    def run() -> None:
        context = AttackContext.open(THREAT, torch.arange(len(x)), 0)
        attack.against(models, context, x, y)

    def floor() -> None:
        for model in models:
            bare_passes(model, x, y, STEPS, 1)

    return Measured(run, floor)


def bare_passes(defense: Defense, x: Tensor, y: Tensor, gradients: int, forwards: int) -> None:
    """Gradients and forward passes of the defense's answer, and nothing else."""
    keys = Keys.of(0, torch.arange(len(x)))
    for _ in range(gradients):
        z = x.clone().requires_grad_()
        logits = defense.respond(z, Context(keys, {}, defense.reads))
        loss = nn.functional.cross_entropy(logits, y, reduction="sum")
        torch.autograd.grad(loss, z)
    with torch.no_grad():
        for _ in range(forwards):
            defense.respond(x, Context(keys, {}, defense.reads))


class _FirstExits(nn.Module):
    """The first exits of a network."""

    def __init__(self, net: nn.Module, count: int) -> None:
        super().__init__()
        self.net = net
        self.count = count

    def forward(self, x: Tensor) -> list[Tensor]:
        return list(self.net(x))[: self.count]


def measured(curve: Curve, rounds: int) -> dict[str, Any]:
    """Medians of CPU seconds by size, and how linear they are in the floor."""
    rows = []
    for size in curve.sizes:
        parts = curve.at(size)
        _seconds(parts.attack)  # the first run imports and allocates
        pairs = [(_seconds(parts.attack), _seconds(parts.floor)) for _ in range(rounds)]
        rows.append(
            {
                "size": size,
                "seconds": round(statistics.median(a for a, _ in pairs), 4),
                "floor": round(statistics.median(b for _, b in pairs), 4),
                "ratio": round(statistics.median(a / b for a, b in pairs), 3),
                "spread": round(max(a / b for a, b in pairs) - min(a / b for a, b in pairs), 3),
            }
        )
        print(curve.name, rows[-1], flush=True)
    return {"across": curve.across, "rows": rows}


def figure(name: str, found: dict[str, Any]) -> Plot:
    """Seconds and floor by size."""
    series = {
        label: tuple((row["size"], row[key]) for row in found["rows"])
        for label, key in (("attack", "seconds"), ("floor: bare passes", "floor"))
    }
    return Plot(
        name, f"CPU time by {found['across']}", found["across"], "seconds", series, joined=True
    )


def _seconds(run: Callable[[], object]) -> float:
    started = time.process_time()
    run()
    return time.process_time() - started


def main() -> None:
    """Measure all curves, write the record and draw the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    x, y = sp.load_data("digits", n=arguments.images)
    found = {curve.name: measured(curve, arguments.rounds) for curve in curves(x, y)}
    record = {
        "command": "python -m benchmarks.growth_curves",
        "images": arguments.images,
        "rounds": arguments.rounds,
        "curves": found,
    }
    RECORD.write_text(json.dumps(record, indent=1) + "\n")
    FIGURES.mkdir(exist_ok=True)
    for name, rows in found.items():
        (FIGURES / f"{name}.svg").write_text(str(draw_svg(figure(name, rows))) + "\n")


if __name__ == "__main__":
    main()
