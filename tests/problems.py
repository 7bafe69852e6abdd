"""Models with known worst cases and gradients.

Everything is float64 and does not depend on the default type of torch, so that an accidental
float32 fails the tests.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from saddlepoint.attacks.losses import Loss, margin
from saddlepoint.attacks.objective import AttackObjective
from saddlepoint.attacks.oracle import Meter, Oracle
from saddlepoint.attacks.spaces import Ball
from saddlepoint.defenses import Access, Context, Defense, Trace, View
from saddlepoint.gradients import Backprop, Estimator
from saddlepoint.rng import Keys

Net = Callable[[Tensor], Tensor]


def normal(seed: int, *shape: int) -> Tensor:
    """Standard normal numbers."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def uniform(seed: int, *shape: int) -> Tensor:
    """Uniform numbers in [0, 1)."""
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def keys(n: int, seed: int = 0) -> Keys:
    """Keys of the examples 0..n-1."""
    return Keys.of(seed, torch.arange(n))


def oracle(
    defense: Defense,
    y: Tensor,
    *,
    loss: Loss = margin,
    estimator: Estimator | None = None,
    access: Access = "gradient",
    limit: int | None = None,
    seed: int = 3,
    ids: Tensor | None = None,
) -> Oracle:
    """An oracle for the defense, as `Direct` creates it."""
    n = len(y)
    ids = torch.arange(n) if ids is None else ids
    meter = Meter.of(n, limit)
    rows = torch.arange(n)
    objective = AttackObjective([defense], y, loss)
    return Oracle(
        objective,
        estimator or Backprop(),
        meter,
        rows,
        Keys.of(seed, ids).as_root(),
        access,
        defense.coupled,
    )


@dataclass(frozen=True)
class Affine:
    """z = W x + b for flattened x. The worst case over a ball is a support function."""

    weight: Tensor  # [C, d]
    bias: Tensor  # [C]

    @classmethod
    def random(cls, seed: int, classes: int, d: int) -> Affine:
        return cls(normal(seed, classes, d) / math.sqrt(d), 0.1 * normal(seed + 1, classes))

    @classmethod
    def binary(cls, w: Tensor) -> Affine:
        """Two classes: the margin of label 0 is -w x, that of label 1 is w x."""
        return cls(torch.stack([w / 2, -w / 2]), w.new_zeros(2))

    def __call__(self, x: Tensor) -> Tensor:
        return x.flatten(1) @ self.weight.T + self.bias

    def worst_margin(self, x: Tensor, y: Tensor, space: Ball) -> Tensor:
        """[N] exact maximum of max_{j != y} z_j - z_y over the set, taken class by class."""
        values = []
        for j in range(len(self.weight)):
            w = self.weight[j] - self.weight[y]
            b = self.bias[j] - self.bias[y]  # [N, d], [N]
            value = (w * x.flatten(1)).sum(1) + b + support(w, x.flatten(1), space)
            values.append(torch.where(y == j, -torch.inf, value))
        return torch.stack(values).amax(0)


def support(w: Tensor, x: Tensor, space: Ball) -> Tensor:
    """[N] max <w, delta> over ||delta||_p <= radius with x + delta in the box.

    Without the box it is the radius times the dual norm of w. Each |delta_i| is at most room_i, the
    radius or the distance to the box on the side of w_i. p = inf: |delta_i| = room_i. p = 1: a
    fractional knapsack, largest |w_i| first. p = 2: |delta_i| = min(t |w_i|, room_i) with t such
    that the length is the radius.
    """
    low, high = space.box
    room = torch.where(w > 0, high - x, x - low).clamp(max=space.radius)
    if space.p == math.inf:
        return (w.abs() * room).sum(1)
    if space.p == 1:
        strength, order = w.abs().sort(dim=1, descending=True)
        room = room.gather(1, order)
        spent = room.cumsum(1) - room
        return (strength * torch.minimum((space.radius - spent).clamp(min=0), room)).sum(1)
    below = torch.zeros(len(x), 1, dtype=x.dtype)
    above = torch.full((len(x), 1), 1e6, dtype=x.dtype)
    for _ in range(200):  # halving 1e6 two hundred times is below the last bit
        t = (below + above) / 2
        inside = torch.minimum(t * w.abs(), room).norm(dim=1, keepdim=True) <= space.radius
        below = torch.where(inside, t, below)
        above = torch.where(inside, above, t)
    return (w.abs() * torch.minimum(below * w.abs(), room)).sum(1)


class Static(Defense):
    """A defense with one view: the output of a function."""

    def __init__(self, net: Net) -> None:
        self.net = net

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        return Trace((View("final", self.net(x)),))


@dataclass(frozen=True)
class Relu:
    """z = V max(U x + a, 0) + b."""

    inner: Tensor  # [H, d]
    inner_bias: Tensor
    outer: Tensor  # [C, H]
    outer_bias: Tensor

    @classmethod
    def random(cls, seed: int, inputs: int = 5, hidden: int = 10, classes: int = 3) -> Relu:
        inner = normal(seed, hidden, inputs)
        outer = normal(seed + 1, classes, hidden)
        return cls(
            inner,
            0.3 * normal(seed + 2, hidden),
            outer / math.sqrt(hidden),
            0.1 * normal(seed + 3, classes),
        )

    def __call__(self, x: Tensor) -> Tensor:
        return (
            x.flatten(1) @ self.inner.T + self.inner_bias
        ).relu() @ self.outer.T + self.outer_bias


def smooth(seed: int, inputs: int = 6, classes: int = 4) -> Net:
    """A smooth net, for comparing gradients with finite differences."""
    inner = normal(seed, 8, inputs)
    outer = normal(seed + 1, classes, 8)
    return lambda x: (x.flatten(1) @ inner.T).tanh() @ outer.T


class Quantized(Defense):
    """Rounds its input at a named site: the true gradient is zero."""

    def __init__(self, net: Net, levels: int = 16) -> None:
        self.net = net
        self.levels = levels

    def quantize(self, x: Tensor) -> Tensor:
        return (x * self.levels).round() / self.levels

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        return Trace((View("final", self.net(ctx.through("quantize", self.quantize, x))),))


class Noisy(Defense):
    """net(x + scale n), n standard normal per example."""

    random = True

    def __init__(self, net: Net, scale: float = 0.1) -> None:
        self.net = net
        self.scale = scale

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        return Trace((View("final", self.net(x + self.scale * ctx.randn_like(x))),))


class Purifier(Defense):
    """`steps` noisy contractions at one named site, with a view after each."""

    random = True

    def __init__(self, net: Net, steps: int = 3, noise: float = 0.05, layers: int = 1) -> None:
        self.net = net
        self.steps = steps
        self.noise = noise
        self.layers = layers

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        def step(v: Tensor) -> Tensor:
            for _ in range(self.layers):
                v = (v + self.noise * ctx.randn_like(v)).sin()
            return v

        views = []
        for t in range(self.steps):
            x = ctx.through("purify", step, x)
            if ctx.keeps(f"purify/{t + 1}"):
                views.append(View(f"purify/{t + 1}", self.net(x)))
        return Trace(tuple(views))


class Centring(Defense):
    """Subtracts the mean of its batch: rows influence each other."""

    coupled = True

    def __init__(self, net: Net) -> None:
        self.net = net

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        return Trace((View("final", self.net(x - x.mean(0))),))


class Shifted(Defense):
    """net(x - mu) with a given mu."""

    def __init__(self, net: Net, mu: Tensor) -> None:
        self.net = net
        self.mu = mu

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        return Trace((View("final", self.net(x - self.mu)),))


class Transductive(Shifted):
    """Adapts mu to each batch: mu = mean x."""

    memory = "batch"

    def adapt(self, x: Tensor, ctx: Context) -> Defense:
        return Shifted(self.net, x.mean(0))


class Online(Shifted):
    """Adapts mu to all batches so far: mu <- (mu + mean x) / 2."""

    memory = "stream"

    def adapt(self, x: Tensor, ctx: Context) -> Defense:
        return Online(self.net, (self.mu + x.mean(0)) / 2)


class Exits(Defense):
    """Several nets as exits; the final output is the mean of the last two."""

    def __init__(self, nets: tuple[Net, ...]) -> None:
        self.nets = nets

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        return Trace(tuple(View(f"exit/{k}", net(x)) for k, net in enumerate(self.nets)))

    def answer(self, trace: Trace, ctx: Context) -> Tensor:
        return trace.logits[-2:].mean(0)


STEP = 0.01  # of brightness, in `Passing`


class Passing(Defense):
    """Row k is misclassified while its brightness is that after k + 1 steps, and brighter is worse.

    The gradient always points to brighter images, so a batch in which all rows make the same steps
    has one error. All rows can be misclassified together: their influence on each other, one
    percent of the mean brightness, is smaller than any lead.
    """

    coupled = True

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        brightness = x.flatten(1).mean(1)
        steps = (brightness - 0.5) / STEP
        number = torch.arange(1, len(x) + 1)
        inside = (steps - number).abs() < 0.5
        lead = torch.where(inside, -1.0, 1.0) - (brightness - brightness.detach())
        lead = lead + 0.01 * brightness.mean()
        return Trace((View("final", torch.stack([lead, -lead], 1)),))
