"""Defenses that only scale, saturate, clip or round their logits or inputs."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from saddlepoint.selftests.case import Case, Truth, linear_truth, truth_after
from saddlepoint.selftests.problem import DEAD, Problem, four_classes, two_classes, worst_margins

_MIN_PIXEL = 0.082  # darker pixels give NaN
_CLIP = (0.3, 0.7)


class Scaled(nn.Module):
    """factor z."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, z: Tensor) -> Tensor:
        return self.factor * z


class Saturated(nn.Module):
    """100 tanh(2 z): keeps the order of the logits and saturates far from zero."""

    def forward(self, z: Tensor) -> Tensor:
        return 100 * (2 * z).tanh()


class Probabilities(nn.Module):
    """softmax(z / temperature)."""

    def __init__(self, temperature: float) -> None:
        super().__init__()
        self.temperature = temperature

    def forward(self, z: Tensor) -> Tensor:
        return (z / self.temperature).softmax(1)


class TopLogitOnly(nn.Module):
    """The highest logit minus the lowest, and zeros for all other classes."""

    def forward(self, z: Tensor) -> Tensor:
        highest, index = (z - z.amin(1, keepdim=True)).max(1, keepdim=True)
        return torch.zeros_like(z).scatter(1, index, highest)


class ExtraClasses(nn.Module):
    """Additional classes that are never predicted."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.extra = DEAD - torch.arange(count) / count

    def forward(self, z: Tensor) -> Tensor:
        return torch.cat([z, self.extra.expand(len(z), -1)], dim=1)


class ClippedInput(nn.Module):
    """Pixels clipped at both ends: outside the range the gradient is zero.

    An attack can still move such a pixel back into the range.
    """

    def forward(self, x: Tensor) -> Tensor:
        return clip_pixels(x)


def clip_pixels(x: Tensor) -> Tensor:
    """Clip to [0.3, 0.7]."""
    return x.clamp(*_CLIP)


class NaNBelowMinimum(nn.Module):
    """The identity, but NaN for pixels that are darker than any pixel of the data."""

    def forward(self, x: Tensor) -> Tensor:
        return x + 0 * (x - _MIN_PIXEL).log()


class HalfPrecision(nn.Module):
    """Logits in half precision: the gradient of a confident prediction underflows to zero."""

    def forward(self, z: Tensor) -> Tensor:
        return (30 * z).half().to(z.dtype)


def _nan_truth(problem: Problem) -> Truth:
    """NaN is not a correct prediction: an image is broken if one pixel can be made too dark."""
    low, high = problem.box()
    worst = worst_margins(problem.weight, problem.bias, low, high, problem.y)
    return Truth.of((worst < 0) & (low > _MIN_PIXEL).all(1))


def _net_then(problem: Problem, layer: nn.Module) -> nn.Module:
    return nn.Sequential(problem.net(), layer).eval()


CASES = (
    Case(
        "logits x 1000",
        "large logits saturate cross-entropy",
        four_classes,
        lambda p: _net_then(p, Scaled(1e3)),
        linear_truth,
    ),
    Case(
        "logits / 1000",
        "small logits make the loss almost constant",
        four_classes,
        lambda p: _net_then(p, Scaled(1e-3)),
        linear_truth,
    ),
    Case(
        "tanh logits",
        "logits saturate, and cross-entropy with them",
        four_classes,
        lambda p: _net_then(p, Saturated()),
        linear_truth,
    ),
    Case(
        "probabilities",
        "outputs are probabilities, so softmax is applied twice",
        four_classes,
        lambda p: _net_then(p, Probabilities(1.0)),
        linear_truth,
    ),
    Case(
        "cold softmax",
        "probabilities are exactly 0 and 1 in floating point",
        four_classes,
        lambda p: _net_then(p, Probabilities(0.01)),
        linear_truth,
    ),
    Case(
        "first score alone",
        "all scores but the highest are zero, so the second class is unknown",
        four_classes,
        lambda p: _net_then(p, TopLogitOnly()),
        linear_truth,
    ),
    Case(
        "padded classes",
        "most classes can never be predicted",
        two_classes,
        lambda p: _net_then(p, ExtraClasses(96)),
        linear_truth,
    ),
    Case(
        "input clipping",
        "clipped pixels have no gradient",
        four_classes,
        lambda p: nn.Sequential(ClippedInput(), p.net()).eval(),
        truth_after(clip_pixels),
    ),
    Case(
        "no number",
        "outside the range of the data the output is NaN",
        four_classes,
        lambda p: nn.Sequential(NaNBelowMinimum(), p.net()).eval(),
        _nan_truth,
    ),
    Case(
        "half precision",
        "gradients of confident predictions underflow",
        four_classes,
        lambda p: _net_then(p, HalfPrecision()),
        linear_truth,
    ),
)
