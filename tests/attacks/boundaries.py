"""Classifiers with a known distance to the decision boundary, and a function to attack them."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from saddlepoint.attacks.best import AttackResult
from saddlepoint.attacks.losses import Loss, margin
from saddlepoint.attacks.objective import AttackObjective
from saddlepoint.attacks.oracle import Meter, Oracle
from saddlepoint.attacks.spaces import Ball
from saddlepoint.defenses import Context, Defense, Plain, Trace, View
from saddlepoint.gradients import Backprop
from saddlepoint.rng import Keys

DUAL = {1: math.inf, 2: 2, math.inf: 1}


def numbers(seed: int, *shape: int) -> Tensor:
    """Uniform numbers in [0, 1), a function of the seed."""
    return Keys.of(seed, torch.arange(1)).uniform(shape, torch.float64)[0]


def linear(classes: int = 2, d: int = 12, seed: int = 1) -> Plain:
    """A linear net with decision boundaries through the middle of the unit box."""
    net = nn.Linear(d, classes, dtype=torch.float64)
    with torch.no_grad():
        net.weight.copy_(2 * numbers(seed, classes, d) - 1)
        net.bias.copy_(-0.5 * net.weight.sum(1))
    return Plain(net.requires_grad_(False))


def mlp(d: int = 6, hidden: int = 16, classes: int = 3) -> Plain:
    net = nn.Sequential(
        nn.Linear(d, hidden, dtype=torch.float64),
        nn.Tanh(),
        nn.Linear(hidden, classes, dtype=torch.float64),
    ).requires_grad_(False)
    for k, p in enumerate(net.parameters()):
        p.copy_((2 * numbers(50 + k, *p.shape) - 1) * (2.0 if p.ndim == 2 else 0.3))
    return Plain(net)


class Centered(Defense):
    """Subtracts a tenth of the batch mean from each row: rows are coupled."""

    coupled = True

    def __init__(self, inner: Plain) -> None:
        self.inner = inner

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        return Trace((View("final", self.inner.net(x - 0.1 * x.mean(0))),))


def images(n: int = 16, d: int = 12, seed: int = 2, low: float = 0.3, high: float = 0.7) -> Tensor:
    return low + (high - low) * numbers(seed, n, d)


def predictions(defense: Defense, x: Tensor) -> Tensor:
    return defense.respond(x, Context.seeded(0, len(x))).argmax(1)


def linear_distance(defense: Plain, x: Tensor, y: Tensor, p: float) -> Tensor:
    """[N] distance to the boundary without a box: min_k (z_y - z_k) / ||w_y - w_k||_q."""
    weight = defense.net.weight
    z = defense.net(x)
    gap = z.gather(1, y[:, None]) - z
    length = torch.linalg.vector_norm(weight[y][:, None] - weight[None], DUAL[p], dim=2)
    return (gap / length).scatter(1, y[:, None], math.inf).amin(1)


def attacked(
    attack: object,
    defense: Defense,
    x: Tensor,
    y: Tensor,
    space: Ball,
    *,
    loss: Loss = margin,
    ids: Tensor | None = None,
    seed: int = 0,
    limit: int | None = None,
) -> tuple[AttackResult, Meter]:
    """Run an attack and return its result and the passes it used."""
    ids = torch.arange(len(x)) if ids is None else ids
    meter = Meter.of(len(x), limit)
    keys = Keys.of(seed, ids)
    objective = AttackObjective([defense], y, loss)
    oracle = Oracle(
        objective,
        Backprop(),
        meter,
        torch.arange(len(x)),
        keys.fold_in(1),
        "gradient",
        defense.coupled,
    )
    return attack(oracle, x, space, keys.fold_in(2)), meter  # type: ignore[operator]
