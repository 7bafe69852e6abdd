"""Defenses that clean their input, refuse it, or learn from it."""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor, nn

from saddlepoint.defenses import Context, Defense, Memory, Trace, View
from saddlepoint.selftests.case import Case, Truth, after, unchanged
from saddlepoint.selftests.exact import meet
from saddlepoint.selftests.problem import Problem, four_classes, two_classes, worst_margins

_STEPS = 100
_WELLS = 8
_PULL = 0.9
_NEAR = 0.8  # of the radius
_STRANGE = 1.5  # what a detector lets pass


class Identity(Defense):
    """A purifier that does nothing, ten times."""

    def __init__(self, net: nn.Module) -> None:
        self.net = net

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        views = []
        for t in range(10):
            x = ctx.through("purify", lambda v: v + 0, x)
            if ctx.keeps(f"purify/{t + 1}"):
                views.append(View(f"purify/{t + 1}", self.net(x)))
        return Trace(tuple(views))


class Settling(Defense):
    """A hundred steps into wells: x <- x - a sin(2 pi L x) / (2 pi L), whose slope vanishes, not its effect."""

    def __init__(self, net: nn.Module) -> None:
        self.net = net

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        for _ in range(_STEPS):
            x = ctx.through("purify", _settle, x)
        return Trace((View("final", self.net(x)),))


class AntiAdversary(nn.Module):
    """Moves the image until the net is surer of what it says already (Alfarra et al. 2022): no answer of two classes changes."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            v = x.detach().requires_grad_()
            z = cast(Tensor, self.net(v))
            (slope,) = torch.autograd.grad(z.amax(1).sum(), v)
        return cast(Tensor, self.net(x + 0.5 * slope.sign()))


class Snapping(nn.Module):
    """Replaces an image near one of the data by it: small perturbations change nothing, so that small steps see nothing."""

    def __init__(self, net: nn.Module, known: Tensor, near: float) -> None:
        super().__init__()
        self.net = net
        self.known = known
        self.near = near

    def forward(self, x: Tensor) -> Tensor:
        distance, which = torch.cdist(
            x.flatten(1), self.known.flatten(1).to(x.dtype), p=torch.inf
        ).min(1)
        snaps = (distance < self.near).view(-1, 1, 1, 1)
        return cast(Tensor, self.net(torch.where(snaps, self.known[which].to(x.dtype), x)))


class Detector(Defense):
    """Refuses an image whose brightness along one direction is unusual."""

    rejects = True

    def __init__(self, net: nn.Module, direction: Tensor) -> None:
        self.net = net
        self.direction = direction

    def trace(self, x: Tensor, ctx: Context) -> Trace:  # noqa: ARG002
        z = cast(Tensor, self.net(x))
        strange = ((x.flatten(1) - 0.5) @ self.direction.to(x.dtype)).abs() > _STRANGE
        refusal = torch.where(strange, z.amax(1) + 1, z.amin(1) - 1)
        return Trace((View("final", torch.cat([z, refusal[:, None]], dim=1)),))


class Memorizing(Defense):
    """Learns its batch by heart: afterwards an image is answered like the one of the batch that is nearest."""

    memory: Memory = "batch"

    def __init__(self, net: nn.Module, known: Tensor | None = None) -> None:
        self.net = net
        self.known = known

    def adapt(self, x: Tensor, ctx: Context) -> Defense:  # noqa: ARG002
        return Memorizing(self.net, x.detach())

    def trace(self, x: Tensor, ctx: Context) -> Trace:  # noqa: ARG002
        if self.known is not None:
            nearest = torch.cdist(x.detach().flatten(1), self.known.flatten(1), p=torch.inf).argmin(
                1
            )
            x = self.known[nearest] + 0 * x
        return Trace((View("final", self.net(x)),))


def _settle(x: Tensor) -> Tensor:
    return x - _PULL * (2 * math.pi * _WELLS * x).sin() / (2 * math.pi * _WELLS)


def _settled(x: Tensor) -> Tensor:
    """Where a pixel ends: each step's slope is 1 - a cos(...) >= 0.1, so that it keeps the order of pixels, and so do all."""
    for _ in range(_STEPS):
        x = _settle(x)
    return x


def _snapped(problem: Problem) -> Truth:
    """Near its image a point is answered as that is; corners, where some pixel moved by the whole radius, are not near."""
    low, high = problem.box()
    x = problem.x.flatten(1).double()
    far = torch.maximum(high - x, x - low).amax(1) > _NEAR * problem.radius
    clean = worst_margins(problem.weight, problem.bias, x, x, problem.y) < 0
    whole = worst_margins(problem.weight, problem.bias, low, high, problem.y) < 0
    return Truth.of(torch.where(far, clean & whole, clean))


def _detected(problem: Problem) -> Truth:
    """A refusal counts as right: an image falls if, for some other class, one point has a positive margin and passes, |t| <= T."""
    (low, high) = problem.box()
    u = _direction(problem).double()
    weight = problem.weight.double()
    bias = problem.bias.double()
    y = problem.y
    passes = torch.stack([_STRANGE + 0.5 * u.sum(), _STRANGE - 0.5 * u.sum()]).expand(len(y), 2)
    fallen = torch.zeros(len(y), dtype=torch.bool)
    for j in range(len(weight)):
        normals = torch.stack(
            [weight[j] - weight[y], *(-u.expand(len(y), -1), u.expand(len(y), -1))], dim=1
        )
        fallen = fallen | (
            meet(normals, torch.cat([(bias[j] - bias[y])[:, None], passes], 1), low, high)
            & (y != j)
        )
    return Truth.of(~fallen)


def _small() -> Problem:
    """Few pixels: the truth of a side condition is found among all pairs of them."""
    return four_classes(radius=0.035, side=4)


def _direction(problem: Problem) -> Tensor:
    return torch.randn(problem.weight.shape[1], generator=torch.Generator().manual_seed(23))


CASES = (
    Case(
        "identity purifier",
        "nothing happens, at great length",
        four_classes,
        lambda p: Identity(p.net()),
        unchanged,
    ),
    Case(
        "vanishing chain",
        "a hundred steps of purification leave no gradient",
        four_classes,
        lambda p: Settling(p.net()),
        after(_settled),
    ),
    Case(
        "anti-adversary",
        "the image is moved to where the answer is surer",
        two_classes,
        lambda p: AntiAdversary(p.net()).eval(),
        unchanged,
    ),
    Case(
        "snapping",
        "small perturbations are undone",
        four_classes,
        lambda p: Snapping(p.net(), p.x, _NEAR * p.radius).eval(),
        _snapped,
    ),
    Case(
        "detector",
        "unusual images are refused",
        _small,
        lambda p: Detector(p.net(), _direction(p)),
        _detected,
    ),
    Case(
        "memorizing",
        "after adapting, answers do not depend on the image",
        four_classes,
        lambda p: Memorizing(p.net()),
        unchanged,
    ),
)
