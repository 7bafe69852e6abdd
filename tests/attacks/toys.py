"""Small models with known worst cases, and oracles for them. Everything is float64."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from saddlepoint.attacks.objective import AttackObjective
from saddlepoint.attacks.oracle import Meter, Oracle
from saddlepoint.defenses import Access, Context, Defense, Plain, Trace, View
from saddlepoint.gradients import Backprop, Estimator, Evaluation
from saddlepoint.rng import Keys


class Halfspace(nn.Module):
    """Two classes; the margin of label 0 is w x - b.

    Rows are summed separately, so that the batch size does not change the rounding.
    """

    def __init__(self, weight: Tensor, offset: float) -> None:
        super().__init__()
        self.weight = weight
        self.offset = offset

    def forward(self, x: Tensor) -> Tensor:
        z = (x.flatten(1) * self.weight).sum(1) - self.offset
        return torch.stack([-z / 2, z / 2], dim=1)


class Waves(nn.Module):
    """Four classes with nonconvex logits: sums of sines of each pixel."""

    def __init__(self, d: int, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.weight, self.speed = (
            torch.randn(4, d, generator=generator, dtype=torch.float64) for _ in range(2)
        )

    def forward(self, x: Tensor) -> Tensor:
        return (self.weight * (8 * self.speed * x.flatten(1)[:, None]).sin()).sum(2)


class Noisy(Defense):
    """Adds normal noise to its input."""

    random = True

    def __init__(self, net: nn.Module, scale: float = 0.01) -> None:
        self.net = net
        self.scale = scale

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        return Trace((View("final", self.net(x + self.scale * ctx.randn_like(x))),))


class Centered(Defense):
    """Subtracts a tenth of the batch mean from each row: rows are coupled."""

    coupled = True

    def __init__(self, net: nn.Module) -> None:
        self.net = net

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        return Trace((View("final", self.net(x - 0.1 * x.mean(0))),))


def weights(d: int, seed: int = 0) -> Tensor:
    return torch.randn(d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def images(n: int, *shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
    return low + (high - low) * Keys.of(5, torch.arange(n)).uniform(shape, torch.float64)


def keys(n: int, seed: int = 0) -> Keys:
    return Keys.of(seed, torch.arange(n)).fold_in(1)


def oracle_for(
    defense: Defense | nn.Module,
    y: Tensor,
    *,
    ids: Tensor | None = None,
    limit: int | None = None,
    access: Access = "gradient",
    estimator: Estimator | None = None,
) -> Oracle:
    defense = defense if isinstance(defense, Defense) else Plain(defense)
    ids = torch.arange(len(y)) if ids is None else ids
    meter = Meter.of(len(y), limit)
    inner = estimator or Backprop()
    return Oracle(
        AttackObjective([defense], y),
        inner,
        meter,
        torch.arange(len(y)),
        Keys.of(7, ids),
        access,
        defense.coupled,
    )


@dataclass(frozen=True)
class DecisionsOnly:
    """An oracle that only returns decisions and records the queried points."""

    inner: Oracle
    queries: list[Tensor] = field(default_factory=list)
    coupled: bool = False

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, rows: Tensor) -> DecisionsOnly:
        return DecisionsOnly(self.inner[rows], self.queries)

    def left(self) -> int:
        return self.inner.left()

    def allowance(self) -> Tensor:
        return self.inner.allowance()

    def decide(self, x: Tensor) -> Tensor:
        self.queries.append(x)
        return self.inner.decide(x)

    def score(self, x: Tensor) -> Evaluation:
        raise AssertionError("a decision attack called score")

    def gradient(self, x: Tensor) -> Evaluation:
        raise AssertionError("a decision attack called gradient")
