"""Defenses that leave answers alone, or round them, and take gradients away."""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor, nn

from saddlepoint.selftests.case import Case, Truth, after, unchanged
from saddlepoint.selftests.exact import reach, separable
from saddlepoint.selftests.problem import Problem, four_classes, left, relabeled

_LEVELS = 8
_CELL = 0.2  # of the transform's coefficients
_RIPPLE = 0.002
_PITCH = 3000.0


class Kill(nn.Module):
    """x, with a gradient of zero."""

    def forward(self, x: Tensor) -> Tensor:
        return x.detach() + 0 * x


class HalfBlind(nn.Module):
    """x, with a gradient of zero in every other column."""

    def forward(self, x: Tensor) -> Tensor:
        seen = (torch.arange(x.shape[-1]) % 2).to(x)
        return seen * x + ((1 - seen) * x).detach()


class Turned(torch.autograd.Function):
    """x going forward; going backward, the gradient times one factor per example."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: Tensor) -> Tensor:
        ctx.save_for_backward(factor)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *cotangent: Tensor) -> tuple[Tensor, None]:
        (factor,) = ctx.saved_tensors
        return cotangent[0] * factor, None


def turned(x: Tensor, factor: Tensor) -> Tensor:
    return cast(Tensor, Turned.apply(x, factor.view(-1, *[1] * (x.ndim - 1))))  # type: ignore[no-untyped-call]


class Flip(nn.Module):
    """x, with the opposite gradient."""

    def forward(self, x: Tensor) -> Tensor:
        return turned(x, -torch.ones(len(x)))


class CoinFlip(nn.Module):
    """x, with a gradient whose sign is tossed for every example and call: its mean is zero."""

    def forward(self, x: Tensor) -> Tensor:
        return turned(
            x, torch.randint(0, 2, (len(x),)) * 2.0 - 1
        )  # torch's own generator, as users' models do


class Ripple(nn.Module):
    """x + a sin(k x): a k = 6 times as steep as what it adds to, and too small to matter."""

    def forward(self, x: Tensor) -> Tensor:
        return ripple(x)


def ripple(x: Tensor) -> Tensor:
    return x + _RIPPLE * (_PITCH * x).sin()


class Quantize(nn.Module):
    """Each pixel rounded to one of a few levels."""

    def forward(self, x: Tensor) -> Tensor:
        return quantized(x)


def quantized(x: Tensor) -> Tensor:
    return (x * _LEVELS).round() / _LEVELS


class Bytes(nn.Module):
    """Each pixel stored in a byte, through which no gradient passes at all."""

    def forward(self, x: Tensor) -> Tensor:
        return (x * 255).round().to(torch.uint8).to(x.dtype) / 255


def stored(x: Tensor) -> Tensor:
    return (x * 255).round() / 255


class Codebook(nn.Module):
    """Each pixel replaced by the word of a codebook whose index is an argmin."""

    def __init__(self) -> None:
        super().__init__()
        self.words = torch.linspace(0, 1, 7) ** 1.3

    def forward(self, x: Tensor) -> Tensor:
        words = self.words.to(x.dtype)
        return words[(x[..., None] - words).abs().argmin(-1)]


class Thermometer(nn.Module):
    """A linear net on the code 1[x_i > l / L], l = 0..L-1, of every pixel (Buckman et al. 2018)."""

    def __init__(self, pixels: int) -> None:
        super().__init__()
        self.weight = (
            torch.randn(4, pixels, _LEVELS, generator=torch.Generator().manual_seed(5)) / 2
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.gains(x.flatten(1)).sum(1)

    def gains(self, x: Tensor) -> Tensor:
        """[..., d] -> [..., d, C]: what each pixel adds to each logit."""
        code = (x[..., None] > torch.arange(_LEVELS) / _LEVELS).to(self.weight)
        return torch.einsum("...il,cil->...ic", code, self.weight)


class Transformed(nn.Module):
    """Neighboring pixels as sum and difference, both rounded, and back: what image compression does to larger blocks."""

    def forward(self, x: Tensor) -> Tensor:
        pairs = x.flatten(1).view(len(x), -1, 2)
        return _unrotated((_rotated(pairs) / _CELL).round() * _CELL).reshape(x.shape)


class OneHot(nn.Module):
    """1 for the class answered, 0 for all others."""

    def forward(self, z: Tensor) -> Tensor:
        return nn.functional.one_hot(z.argmax(1), z.shape[1]).to(z.dtype)


class Labels:
    """Not a net: a function from images to labels."""

    def __init__(self, net: nn.Module) -> None:
        self.net = net

    def __call__(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.net(x)).argmax(1)


def _rotated(pairs: Tensor) -> Tensor:
    """(a, b) -> ((a + b), (a - b)) / sqrt 2."""
    a, b = pairs.unbind(-1)
    return torch.stack([a + b, a - b], dim=-1) / math.sqrt(2)


_unrotated = _rotated  # its own inverse


def _rippled(problem: Problem) -> Truth:
    """A continuous function maps an interval to an interval; it grows from period to period: the ends lie in the outer ones."""
    (low, high) = problem.box()
    period = 2 * math.pi / _PITCH
    least = reach(ripple, low, low + period)[0]
    most = reach(ripple, high - period, high)[1]
    return Truth.of(left(problem, least, most))


def _thermometers(problem: Problem) -> Truth:
    """Every level that a pixel reaches, tried: the code changes just above l / L."""
    net = Thermometer(problem.weight.shape[1])
    (low, high) = problem.box()
    just_above = torch.arange(_LEVELS, dtype=torch.float64) / _LEVELS + 1e-9
    return Truth.of(separable(net.gains, just_above, low, high, problem.y) < 0)


def _transforms(problem: Problem) -> Truth:
    """Every pair of rounded coefficients that a pair of pixels reaches, tried.

    Pixels reach a rectangle R, and a pair k of whole numbers stands for a square Q_k turned by 45 degrees. Two convex polygons meet
    unless a line along one of their edges parts them: R and Q_k are compared along both axes of each.
    """
    low, high = (side.view(len(side), -1, 2) for side in problem.box())  # [N, P, 2]
    center = (low + high) / 2
    half = (high - low) / 2
    middle = (_rotated(center) / _CELL).round()
    span = torch.arange(-2.0, 3.0, dtype=torch.float64)
    steps = torch.cartesian_prod(span, span)  # [K, 2]; the radius is far below two cells
    k = (middle[..., None, :] + steps) * _CELL  # [N, P, K, 2] centers of Q_k in rotated coordinates
    turned_gap = (k - _rotated(center)[..., None, :]).abs()
    gap = (_unrotated(k) - center[..., None, :]).abs()
    # To each side R is (h_1 + h_2) / sqrt 2 wide along rotated axes, and Q_k cell / 2; along the pixels' axes, h and cell / sqrt 2.
    across = half.sum(-1, keepdim=True)[..., None, :] / math.sqrt(2) + _CELL / 2
    along = half[..., None, :] + _CELL / math.sqrt(2)
    reached = (turned_gap < across).all(-1) & (gap < along).all(-1)  # [N, P, K]
    values = _unrotated(k)
    weight = problem.weight.double()
    bias = problem.bias.double()
    worst = []
    for j in range(len(weight)):
        w = (weight[j] - weight[problem.y]).view(len(low), -1, 1, 2)
        best = (
            torch.where(reached, (w * values).sum(-1), -torch.inf).amax(-1).sum(1)
            + bias[j]
            - bias[problem.y]
        )
        worst.append(torch.where(problem.y == j, -torch.inf, best))
    return Truth.of(torch.stack(worst).amax(0) < 0)


def _with_thermometer() -> Problem:
    problem = four_classes()
    return relabeled(problem, Thermometer(problem.weight.shape[1]))


def _before(layer: nn.Module, problem: Problem) -> nn.Module:
    return nn.Sequential(layer, problem.net()).eval()


CASES = (
    Case(
        "plain net",
        "nothing is hidden: who misses this misses everything",
        four_classes,
        lambda p: p.net(),
        unchanged,
    ),
    Case(
        "gradient killer",
        "the gradient is zero everywhere",
        four_classes,
        lambda p: _before(Kill(), p),
        unchanged,
    ),
    Case(
        "half a gradient",
        "every other column of 32 is left out, more than a search makes up for",
        lambda: four_classes(radius=0.005, side=32),
        lambda p: _before(HalfBlind(), p),
        unchanged,
    ),
    Case(
        "flipped gradients",
        "every gradient leads away from mistakes",
        four_classes,
        lambda p: _before(Flip(), p),
        unchanged,
    ),
    Case(
        "coin-flip gradients",
        "gradients average to zero",
        four_classes,
        lambda p: _before(CoinFlip(), p),
        unchanged,
    ),
    Case(
        "shattered gradients",
        "a ripple too small to matter rules the gradient",
        four_classes,
        lambda p: _before(Ripple(), p),
        _rippled,
    ),
    Case(
        "quantizer",
        "rounded pixels have no gradient",
        four_classes,
        lambda p: _before(Quantize(), p),
        after(quantized),
    ),
    Case(
        "bytes",
        "no gradient passes an integer",
        four_classes,
        lambda p: _before(Bytes(), p),
        after(stored),
    ),
    Case(
        "codebook",
        "an argmin picks what the net sees",
        four_classes,
        lambda p: _before(Codebook(), p),
        after(Codebook()),
    ),
    Case(
        "thermometer code",
        "a code of steps has no gradient",
        _with_thermometer,
        lambda p: Thermometer(p.weight.shape[1]).eval(),
        _thermometers,
    ),
    Case(
        "rounded transform",
        "coefficients of pixel pairs are rounded",
        four_classes,
        lambda p: _before(Transformed(), p),
        _transforms,
    ),
    Case(
        "one-hot answers",
        "scores say nothing",
        four_classes,
        lambda p: nn.Sequential(p.net(), OneHot()).eval(),
        unchanged,
    ),
    Case(
        "labels only",
        "a function that answers with labels",
        four_classes,
        lambda p: Labels(p.net()),
        unchanged,
    ),
)
