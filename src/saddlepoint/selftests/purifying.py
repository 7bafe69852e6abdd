"""Defenses that purify their input, reject it, or adapt to it."""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor, nn

from saddlepoint.defenses import Context, Defense, Memory, Trace, View
from saddlepoint.selftests.case import Case, Truth, linear_truth, truth_after
from saddlepoint.selftests.exact import meet
from saddlepoint.selftests.problem import Problem, four_classes, two_classes, worst_margins

_STEPS = 100
_WELLS = 8
_PULL = 0.9
_SNAP_FRACTION = 0.8  # of the radius
_REJECT_ABOVE = 1.5  # largest absolute projection that the detector accepts


class IdentityPurifier(Defense):
    """A purifier of ten steps that does not change the image."""

    def __init__(self, net: nn.Module) -> None:
        self.net = net

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        views = []
        for t in range(10):
            x = ctx.through("purify", lambda v: v + 0, x)
            if ctx.keeps(f"purify/{t + 1}"):
                views.append(View(f"purify/{t + 1}", self.net(x)))
        return Trace(tuple(views))


class WellPurifier(Defense):
    """A hundred steps toward wells: x <- x - a sin(2 pi L x) / (2 pi L).

    The gradient of the whole chain vanishes, although the output still depends on the image.
    """

    def __init__(self, net: nn.Module) -> None:
        self.net = net

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        for _ in range(_STEPS):
            x = ctx.through("purify", _well_step, x)
        return Trace((View("final", self.net(x)),))


class SignAntiAdversary(nn.Module):
    """Moves the image to increase the confidence of the prediction (Alfarra et al. 2022).

    With two classes, no prediction changes.
    """

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            v = x.detach().requires_grad_()
            z = cast(Tensor, self.net(v))
            (gradient,) = torch.autograd.grad(z.amax(1).sum(), v)
        return cast(Tensor, self.net(x + 0.5 * gradient.sign()))


class Snapping(nn.Module):
    """Replaces an image by an image of the data set if one is near.

    Small perturbations have no effect, so small steps give an attack no information.
    """

    def __init__(self, net: nn.Module, known: Tensor, near: float) -> None:
        super().__init__()
        self.net = net
        self.known = known
        self.near = near  # Linf distance

    def forward(self, x: Tensor) -> Tensor:
        known = self.known.flatten(1).to(x.dtype)
        distance, nearest = torch.cdist(x.flatten(1), known, p=torch.inf).min(1)
        snaps = (distance < self.near).view(-1, 1, 1, 1)
        return cast(Tensor, self.net(torch.where(snaps, self.known[nearest].to(x.dtype), x)))


class Detector(Defense):
    """Rejects an image if its projection onto one direction is unusually large."""

    rejects = True

    def __init__(self, net: nn.Module, direction: Tensor) -> None:
        self.net = net
        self.direction = direction

    def trace(self, x: Tensor, ctx: Context) -> Trace:  # noqa: ARG002
        z = cast(Tensor, self.net(x))
        projection = (x.flatten(1) - 0.5) @ self.direction.to(x.dtype)
        unusual = projection.abs() > _REJECT_ABOVE
        rejection = torch.where(unusual, z.amax(1) + 1, z.amin(1) - 1)
        return Trace((View("final", torch.cat([z, rejection[:, None]], dim=1)),))


class Memorizing(Defense):
    """Adapts by storing its batch.

    The adapted model returns the output of the nearest stored image.
    """

    memory: Memory = "batch"

    def __init__(self, net: nn.Module, known: Tensor | None = None) -> None:
        self.net = net
        self.known = known

    def adapt(self, x: Tensor, ctx: Context) -> Defense:  # noqa: ARG002
        return Memorizing(self.net, x.detach())

    def trace(self, x: Tensor, ctx: Context) -> Trace:  # noqa: ARG002
        if self.known is not None:
            distance = torch.cdist(x.detach().flatten(1), self.known.flatten(1), p=torch.inf)
            x = self.known[distance.argmin(1)] + 0 * x
        return Trace((View("final", self.net(x)),))


def _well_step(x: Tensor) -> Tensor:
    return x - _PULL * (2 * math.pi * _WELLS * x).sin() / (2 * math.pi * _WELLS)


def _purified(x: Tensor) -> Tensor:
    """The pixels after all steps of `WellPurifier`.

    The derivative of a step is 1 - a cos(...) >= 0.1, so every step is monotone.
    """
    for _ in range(_STEPS):
        x = _well_step(x)
    return x


def _snapping_truth(problem: Problem) -> Truth:
    """A point near its clean image gets the prediction of the clean image.

    Corners are not near, because some pixel moves by the whole radius there.
    """
    low, high = problem.box()
    x = problem.x.flatten(1).double()
    far = torch.maximum(high - x, x - low).amax(1) > _SNAP_FRACTION * problem.radius
    clean = worst_margins(problem.weight, problem.bias, x, x, problem.y) < 0
    robust = worst_margins(problem.weight, problem.bias, low, high, problem.y) < 0
    return Truth.of(torch.where(far, clean & robust, clean))


def _detector_truth(problem: Problem) -> Truth:
    """Exact worst case of `Detector`; a rejection counts as correct.

    An image is broken if, for some other class, one point has a positive margin and is accepted,
    |t| <= T.
    """
    low, high = problem.box()
    u = _direction(problem).double()
    weight = problem.weight.double()
    bias = problem.bias.double()
    y = problem.y
    direction = u.expand(len(y), -1)
    accepted = torch.stack([_REJECT_ABOVE + 0.5 * u.sum(), _REJECT_ABOVE - 0.5 * u.sum()])
    broken = torch.zeros(len(y), dtype=torch.bool)
    for j in range(len(weight)):
        normals = torch.stack([weight[j] - weight[y], -direction, direction], dim=1)
        offsets = torch.cat([(bias[j] - bias[y])[:, None], accepted.expand(len(y), 2)], 1)
        broken = broken | (meet(normals, offsets, low, high) & (y != j))
    return Truth.of(~broken)


def _detector_problem() -> Problem:
    """Only 16 pixels, because `meet` with three half-spaces enumerates all pairs of pixels."""
    return four_classes(radius=0.035, side=4)


def _direction(problem: Problem) -> Tensor:
    return torch.randn(problem.weight.shape[1], generator=torch.Generator().manual_seed(23))


CASES = (
    Case(
        "identity purifier",
        "ten purification steps that do nothing",
        four_classes,
        lambda p: IdentityPurifier(p.net()),
        linear_truth,
    ),
    Case(
        "vanishing chain",
        "the gradient vanishes over a hundred purification steps",
        four_classes,
        lambda p: WellPurifier(p.net()),
        truth_after(_purified),
    ),
    Case(
        "anti-adversary",
        "the image is moved to where the prediction is more confident",
        two_classes,
        lambda p: SignAntiAdversary(p.net()).eval(),
        linear_truth,
    ),
    Case(
        "snapping",
        "small perturbations are undone",
        four_classes,
        lambda p: Snapping(p.net(), p.x, _SNAP_FRACTION * p.radius).eval(),
        _snapping_truth,
    ),
    Case(
        "detector",
        "unusual images are rejected",
        _detector_problem,
        lambda p: Detector(p.net(), _direction(p)),
        _detector_truth,
    ),
    Case(
        "memorizing",
        "after adaptation, perturbing the image has no effect",
        four_classes,
        lambda p: Memorizing(p.net()),
        linear_truth,
    ),
)
