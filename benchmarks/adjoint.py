"""Figure 4 of Yang et al. 2022 on an embedded network, with both adjoint processes.

    python -m benchmarks.adjoint --n 300   # -> benchmarks/records/equilibria/adjoint.json

The paper's process takes the loss of z_0 in its first step (Eq. 9). Ours takes the loss of z_1
instead. Both attack digits by PGD-10 with the gradient at u_1, ..., u_4; the accuracy of each state
z_1, ..., z_4 is recorded. The paper's claim is that u_(n+1) is the strongest attack on z_n.
"""

from __future__ import annotations

import argparse
import json
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from saddlepoint import zoo
from saddlepoint.attacks.losses import cross_entropy
from saddlepoint.attacks.objective import AttackObjective
from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import Linf, Radii
from saddlepoint.data import load_data
from saddlepoint.defenses import view
from saddlepoint.evaluation import evaluate
from saddlepoint.gradients import Backprop
from saddlepoint.papers.deq.gradients import adjoint_at
from saddlepoint.rng import Keys
from saddlepoint.zoo.deq import DEQ, EarlyState
from saddlepoint.zoo.deq.model import SITE

OUT = Path("benchmarks/records/equilibria/adjoint.json")
NETWORK = "digits-deq-unrolled"
RADIUS = 0.15
STATES = 4


def accuracies(defense: DEQ, x: Tensor, y: Tensor, *, start: bool) -> list[list[float]]:
    """Accuracy in percent of z_1..z_4 (columns) under attacks with u_1..u_4 (rows)."""
    attacks = [adjoint_at(n, start=start).pgd(PGD(10, Radii(1 / 4))) for n in range(1, STATES + 1)]
    names = [EarlyState(n).name for n in range(1, STATES + 1)]
    answers = {name: view(name) for name in names}
    found = evaluate(defense, attacks, x, y, threat=Linf(RADIUS), answers=answers).accuracy()
    return [[round(100 * float(value), 2) for value in row] for row in found]


def mean_cosine(defense: DEQ, x: Tensor, y: Tensor, n: int) -> float:
    """Mean cosine over images between the two gradients at u_n."""
    keys = Keys.of(0, torch.arange(len(x)))
    grads = []
    for gradient in (adjoint_at(n), adjoint_at(n, start=False)):
        objective = AttackObjective(
            [defense], y, cross_entropy, gradient.aim, {SITE: gradient.rule}, gradient.keep
        )
        grads.append(Backprop().value_and_grad(objective, x, keys).grad.flatten(1))
    return float(torch.cosine_similarity(*grads, dim=1).mean())


def measure(n: int) -> dict[str, Any]:
    """Both processes on the first n test digits."""
    data = load_data("digits", split="test", n=n)
    defense = zoo.load(NETWORK).defense
    tables = {
        name: accuracies(defense, data.x, data.y, start=start)
        for name, start in (("paper: loss of z_0", True), ("ours: loss of z_1", False))
    }
    return {
        "network": NETWORK,
        "images": len(data),
        "radius": RADIUS,
        "attack": "PGD-10, steps of a quarter of the radius",
        "rows": [f"u_{k}" for k in range(1, STATES + 1)],
        "columns": [f"z_{k}" for k in range(1, STATES + 1)],
        "accuracy, %": tables,
        "u_(n+1) is the strongest on z_n": {
            name: [table[k + 1][k] <= min(row[k] for row in table) for k in range(STATES - 1)]
            for name, table in tables.items()
        },
        "mean cosine between the two gradients": {
            f"u_{k}": round(mean_cosine(defense, data.x, data.y, k), 3)
            for k in range(1, STATES + 1)
        },
    }


def main() -> None:
    """Measure and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=300, help="number of digits")
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    record = {
        "command": f"python -m benchmarks.adjoint --n {arguments.n}",
        "torch": version("torch"),
        "python": platform.python_version(),
        **measure(arguments.n),
    }
    arguments.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
