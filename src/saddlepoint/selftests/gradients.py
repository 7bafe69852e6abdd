"""Defenses that mask gradients; predictions are unchanged or only affected by rounding."""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor, nn

from saddlepoint.selftests.case import Case, Truth, linear_truth, truth_after
from saddlepoint.selftests.exact import separable, value_range
from saddlepoint.selftests.problem import Problem, four_classes, left, relabeled

_LEVELS = 8
_CELL = 0.2  # rounding step of the transform's coefficients
_RIPPLE_AMPLITUDE = 0.002
_RIPPLE_FREQUENCY = 3000.0


class ZeroGradient(nn.Module):
    """x, with a gradient of zero."""

    def forward(self, x: Tensor) -> Tensor:
        return x.detach() + 0 * x


class HalfGradient(nn.Module):
    """x, with a gradient of zero in every other column."""

    def forward(self, x: Tensor) -> Tensor:
        keeps_gradient = (torch.arange(x.shape[-1]) % 2).to(x)
        return keeps_gradient * x + ((1 - keeps_gradient) * x).detach()


class _ScaleGradient(torch.autograd.Function):
    """The identity in the forward pass; the backward pass multiplies by one factor per example."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: Tensor) -> Tensor:
        ctx.save_for_backward(factor)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *cotangent: Tensor) -> tuple[Tensor, None]:
        (factor,) = ctx.saved_tensors
        return cotangent[0] * factor, None


def scale_gradient(x: Tensor, factor: Tensor) -> Tensor:
    """Return x, with its gradient multiplied by `factor` [N]."""
    per_example = factor.view(-1, *[1] * (x.ndim - 1))
    return cast(Tensor, _ScaleGradient.apply(x, per_example))  # type: ignore[no-untyped-call]


class FlippedGradient(nn.Module):
    """x, with the opposite gradient."""

    def forward(self, x: Tensor) -> Tensor:
        return scale_gradient(x, -torch.ones(len(x)))


class RandomSignGradient(nn.Module):
    """x, with a random sign of the gradient for every example and call: the mean is zero."""

    def forward(self, x: Tensor) -> Tensor:
        # Drawn from torch's global generator, as in users' models.
        return scale_gradient(x, torch.randint(0, 2, (len(x),)) * 2.0 - 1)


class Ripple(nn.Module):
    """x + a sin(k x): the ripple is small, but its slope a k = 6 dominates the gradient."""

    def forward(self, x: Tensor) -> Tensor:
        return add_ripple(x)


def add_ripple(x: Tensor) -> Tensor:
    """x + a sin(k x)."""
    return x + _RIPPLE_AMPLITUDE * (_RIPPLE_FREQUENCY * x).sin()


class Quantize(nn.Module):
    """Rounds each pixel to a multiple of 1/8."""

    def forward(self, x: Tensor) -> Tensor:
        return quantize(x)


def quantize(x: Tensor) -> Tensor:
    """Round to a multiple of 1/8."""
    return (x * _LEVELS).round() / _LEVELS


class StoreAsBytes(nn.Module):
    """Converts each pixel to uint8 and back: there is no path for the gradient."""

    def forward(self, x: Tensor) -> Tensor:
        return (x * 255).round().to(torch.uint8).to(x.dtype) / 255


def round_to_bytes(x: Tensor) -> Tensor:
    """The values of `StoreAsBytes`, computed in floating point."""
    return (x * 255).round() / 255


class Codebook(nn.Module):
    """Replaces each pixel by the nearest entry of a codebook, selected by an argmin."""

    def __init__(self) -> None:
        super().__init__()
        self.words = torch.linspace(0, 1, 7) ** 1.3

    def forward(self, x: Tensor) -> Tensor:
        words = self.words.to(x.dtype)
        return words[(x[..., None] - words).abs().argmin(-1)]


class Thermometer(nn.Module):
    """A linear net on the thermometer code 1[x_i > l / L], l = 0..L-1 (Buckman et al. 2018)."""

    def __init__(self, pixels: int) -> None:
        super().__init__()
        self.weight = (
            torch.randn(4, pixels, _LEVELS, generator=torch.Generator().manual_seed(5)) / 2
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.gains(x.flatten(1)).sum(1)

    def gains(self, x: Tensor) -> Tensor:
        """[..., d] -> [..., d, C]: the contribution of each pixel to each logit."""
        code = (x[..., None] > torch.arange(_LEVELS) / _LEVELS).to(self.weight)
        return torch.einsum("...il,cil->...ic", code, self.weight)


class RoundedTransform(nn.Module):
    """Rounds the normalized sum and difference of each pair of neighboring pixels.

    Image compression does the same with larger blocks.
    """

    def forward(self, x: Tensor) -> Tensor:
        pairs = x.flatten(1).view(len(x), -1, 2)
        return _inverse_rotate((_rotate(pairs) / _CELL).round() * _CELL).reshape(x.shape)


class OneHot(nn.Module):
    """1 for the predicted class, 0 for all others."""

    def forward(self, z: Tensor) -> Tensor:
        return nn.functional.one_hot(z.argmax(1), z.shape[1]).to(z.dtype)


class PredictedLabels:
    """A function from images to predicted labels; not an `nn.Module`."""

    def __init__(self, net: nn.Module) -> None:
        self.net = net

    def __call__(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.net(x)).argmax(1)


def _rotate(pairs: Tensor) -> Tensor:
    """(a, b) -> ((a + b), (a - b)) / sqrt 2."""
    a, b = pairs.unbind(-1)
    return torch.stack([a + b, a - b], dim=-1) / math.sqrt(2)


_inverse_rotate = _rotate  # the map is its own inverse


def _ripple_truth(problem: Problem) -> Truth:
    """Exact worst case behind `Ripple`.

    A continuous function maps an interval to an interval. The function increases from period to
    period, so its minimum is in the first period of the interval and its maximum in the last.
    """
    low, high = problem.box()
    period = 2 * math.pi / _RIPPLE_FREQUENCY
    smallest = value_range(add_ripple, low, low + period)[0]
    largest = value_range(add_ripple, high - period, high)[1]
    return Truth.of(left(problem, smallest, largest))


def _thermometer_truth(problem: Problem) -> Truth:
    """Tries every level that a pixel can reach: the code changes just above l / L."""
    net = Thermometer(problem.weight.shape[1])
    low, high = problem.box()
    just_above = torch.arange(_LEVELS, dtype=torch.float64) / _LEVELS + 1e-9
    return Truth.of(separable(net.gains, just_above, low, high, problem.y) < 0)


def _transform_truth(problem: Problem) -> Truth:
    """Tries every pair of rounded coefficients that a pair of pixels can reach."""
    low, high = (side.view(len(side), -1, 2) for side in problem.box())  # [N, P, 2]
    center = (low + high) / 2
    middle = (_rotate(center) / _CELL).round()
    span = torch.arange(-2.0, 3.0, dtype=torch.float64)
    # [K, 2]; the radius is far below two cells.
    steps = torch.cartesian_prod(span, span)
    k = (middle[..., None, :] + steps) * _CELL  # [N, P, K, 2], in rotated coordinates
    reachable = _reaches_cell(center, (high - low) / 2, k)  # [N, P, K]
    values = _inverse_rotate(k)
    weight = problem.weight.double()
    bias = problem.bias.double()
    worst = []
    for j in range(len(weight)):
        w = (weight[j] - weight[problem.y]).view(len(low), -1, 1, 2)
        gain = torch.where(reachable, (w * values).sum(-1), -torch.inf).amax(-1).sum(1)
        margin = gain + bias[j] - bias[problem.y]
        worst.append(torch.where(problem.y == j, -torch.inf, margin))
    return Truth.of(torch.stack(worst).amax(0) < 0)


def _reaches_cell(center: Tensor, half: Tensor, cell_center: Tensor) -> Tensor:
    """Whether the rectangle R of each pair of pixels intersects each rounding cell Q_k.

    Q_k is a square that is rotated by 45 degrees. Two convex polygons are disjoint only if a line
    parallel to one of their edges separates them. R and Q_k are therefore compared along the axes
    of both.

    Args:
        center: Center of R, [N, P, 2].
        half: Half the side lengths h of R, [N, P, 2].
        cell_center: Center of Q_k in rotated coordinates, [N, P, K, 2].

    Returns:
        [N, P, K] bool.
    """
    rotated_gap = (cell_center - _rotate(center)[..., None, :]).abs()
    gap = (_inverse_rotate(cell_center) - center[..., None, :]).abs()
    # Half widths along the rotated axes: (h_1 + h_2) / sqrt 2 for R and cell / 2 for Q_k. Along the
    # pixel axes: h for R and cell / sqrt 2 for Q_k.
    rotated_reach = half.sum(-1, keepdim=True)[..., None, :] / math.sqrt(2) + _CELL / 2
    reach = half[..., None, :] + _CELL / math.sqrt(2)
    return (rotated_gap < rotated_reach).all(-1) & (gap < reach).all(-1)


def _thermometer_problem() -> Problem:
    problem = four_classes()
    return relabeled(problem, Thermometer(problem.weight.shape[1]))


def _layer_then_net(layer: nn.Module, problem: Problem) -> nn.Module:
    return nn.Sequential(layer, problem.net()).eval()


CASES = (
    Case(
        "plain net",
        "nothing is masked; every evaluator should be right here",
        four_classes,
        lambda p: p.net(),
        linear_truth,
    ),
    Case(
        "gradient killer",
        "the gradient is zero everywhere",
        four_classes,
        lambda p: _layer_then_net(ZeroGradient(), p),
        linear_truth,
    ),
    Case(
        "half a gradient",
        "the gradient is zero in every other of 32 columns, too many for random search",
        lambda: four_classes(radius=0.005, side=32),
        lambda p: _layer_then_net(HalfGradient(), p),
        linear_truth,
    ),
    Case(
        "flipped gradients",
        "every gradient has the opposite sign",
        four_classes,
        lambda p: _layer_then_net(FlippedGradient(), p),
        linear_truth,
    ),
    Case(
        "coin-flip gradients",
        "gradients have random signs and average to zero",
        four_classes,
        lambda p: _layer_then_net(RandomSignGradient(), p),
        linear_truth,
    ),
    Case(
        "shattered gradients",
        "a ripple with almost no effect on the output dominates the gradient",
        four_classes,
        lambda p: _layer_then_net(Ripple(), p),
        _ripple_truth,
    ),
    Case(
        "quantizer",
        "rounded pixels have no gradient",
        four_classes,
        lambda p: _layer_then_net(Quantize(), p),
        truth_after(quantize),
    ),
    Case(
        "bytes",
        "pixels are stored as integers, through which no gradient flows",
        four_classes,
        lambda p: _layer_then_net(StoreAsBytes(), p),
        truth_after(round_to_bytes),
    ),
    Case(
        "codebook",
        "an argmin selects the input of the net",
        four_classes,
        lambda p: _layer_then_net(Codebook(), p),
        truth_after(Codebook()),
    ),
    Case(
        "thermometer code",
        "a step function of each pixel has no gradient",
        _thermometer_problem,
        lambda p: Thermometer(p.weight.shape[1]).eval(),
        _thermometer_truth,
    ),
    Case(
        "rounded transform",
        "transform coefficients of pixel pairs are rounded",
        four_classes,
        lambda p: _layer_then_net(RoundedTransform(), p),
        _transform_truth,
    ),
    Case(
        "one-hot answers",
        "scores are one-hot and carry no more information than the label",
        four_classes,
        lambda p: nn.Sequential(p.net(), OneHot()).eval(),
        linear_truth,
    ),
    Case(
        "labels only",
        "a function that returns labels only",
        four_classes,
        lambda p: PredictedLabels(p.net()),
        linear_truth,
    ),
)
