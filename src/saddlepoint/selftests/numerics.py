"""Defenses that are only badly scaled, saturated, cut off or rounded."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from saddlepoint.selftests.case import Case, Truth, after, unchanged
from saddlepoint.selftests.problem import DEAD, Problem, four_classes, two_classes, worst_margins

_KNOWN = 0.082  # the darkest pixel that the net can take
_CLIP = (0.3, 0.7)


class Scaled(nn.Module):
    """factor z."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, z: Tensor) -> Tensor:
        return self.factor * z


class Saturated(nn.Module):
    """100 tanh(2 z): keeps the order of logits, and flattens them far from zero."""

    def forward(self, z: Tensor) -> Tensor:
        return 100 * (2 * z).tanh()


class Probabilities(nn.Module):
    """softmax(z / temperature)."""

    def __init__(self, temperature: float) -> None:
        super().__init__()
        self.temperature = temperature

    def forward(self, z: Tensor) -> Tensor:
        return (z / self.temperature).softmax(1)


class FirstAlone(nn.Module):
    """The highest logit, above the lowest, and zeros."""

    def forward(self, z: Tensor) -> Tensor:
        highest, at = (z - z.amin(1, keepdim=True)).max(1, keepdim=True)
        return torch.zeros_like(z).scatter(1, at, highest)


class Padded(nn.Module):
    """More classes, none of which ever wins."""

    def __init__(self, more: int) -> None:
        super().__init__()
        self.extra = DEAD - torch.arange(more) / more

    def forward(self, z: Tensor) -> Tensor:
        return torch.cat([z, self.extra.expand(len(z), -1)], dim=1)


class Clipped(nn.Module):
    """Pixels cut off at both ends: beyond them there is no gradient, although an attacker comes back inside."""

    def forward(self, x: Tensor) -> Tensor:
        return clipped(x)


def clipped(x: Tensor) -> Tensor:
    return x.clamp(*_CLIP)


class TargetFacts(nn.Module):
    """Pixels darker than any of the data make it answer with what is not a number."""

    def forward(self, x: Tensor) -> Tensor:
        return x + 0 * (x - _KNOWN).log()


class Half(nn.Module):
    """Logits in half precision, in which the gradient of a sure answer is rounded to zero."""

    def forward(self, z: Tensor) -> Tensor:
        return (30 * z).half().to(z.dtype)


def _known(problem: Problem) -> Truth:
    """An answer that is not a number is no right answer: an image falls as soon as one pixel can be made too dark."""
    low, high = problem.box()
    worst = worst_margins(problem.weight, problem.bias, low, high, problem.y)
    return Truth.of((worst < 0) & (low > _KNOWN).all(1))


def _then(problem: Problem, layer: nn.Module) -> nn.Module:
    return nn.Sequential(problem.net(), layer).eval()


CASES = (
    Case(
        "logits x 1000",
        "cross-entropy saturates",
        four_classes,
        lambda p: _then(p, Scaled(1e3)),
        unchanged,
    ),
    Case(
        "logits / 1000",
        "losses hardly change",
        four_classes,
        lambda p: _then(p, Scaled(1e-3)),
        unchanged,
    ),
    Case(
        "tanh logits",
        "logits saturate, and so does cross-entropy",
        four_classes,
        lambda p: _then(p, Saturated()),
        unchanged,
    ),
    Case(
        "probabilities",
        "softmax is taken twice",
        four_classes,
        lambda p: _then(p, Probabilities(1.0)),
        unchanged,
    ),
    Case(
        "cold softmax",
        "probabilities are 0 and 1 to the last bit",
        four_classes,
        lambda p: _then(p, Probabilities(0.01)),
        unchanged,
    ),
    Case(
        "first score alone",
        "nothing tells which class comes second",
        four_classes,
        lambda p: _then(p, FirstAlone()),
        unchanged,
    ),
    Case(
        "padded classes",
        "most classes can never be reached",
        two_classes,
        lambda p: _then(p, Padded(96)),
        unchanged,
    ),
    Case(
        "input clipping",
        "clipped pixels show no gradient",
        four_classes,
        lambda p: nn.Sequential(Clipped(), p.net()).eval(),
        after(clipped),
    ),
    Case(
        "no number",
        "outside the data's range it answers NaN",
        four_classes,
        lambda p: nn.Sequential(TargetFacts(), p.net()).eval(),
        _known,
    ),
    Case(
        "half precision",
        "gradients of sure answers underflow",
        four_classes,
        lambda p: _then(p, Half()),
        unchanged,
    ),
)
