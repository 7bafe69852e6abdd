"""Classifiers whose distance to the decision boundary is known, and a seat from which to attack them."""

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
    """Uniform in [0, 1), the same for ever."""
    return Keys.of(seed, torch.arange(1)).uniform(shape, torch.float64)[0]


def linear(classes: int = 2, d: int = 12, seed: int = 1) -> Plain:
    """All boundaries pass through the middle of the unit box."""
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


class Centerd(Defense):
    """Answers on the batch minus a tenth of its mean: every row depends on all."""

    coupled = True

    def __init__(self, inner: Plain) -> None:
        self.inner = inner

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        return Trace((View("final", self.inner.net(x - 0.1 * x.mean(0))),))


def images(n: int = 16, d: int = 12, seed: int = 2, low: float = 0.3, high: float = 0.7) -> Tensor:
    return low + (high - low) * numbers(seed, n, d)


def answers(defense: Defense, x: Tensor) -> Tensor:
    return defense.respond(x, Context.seeded(0, len(x))).argmax(1)


def linear_distance(defense: Plain, x: Tensor, y: Tensor, p: float) -> Tensor:
    """min_k (z_y - z_k) / ||w_y - w_k||_q, with no box in the way."""
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
