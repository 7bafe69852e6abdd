"""The images of the self-test, and the exact worst case of a linear classifier on a box.

Images have 64 or 16 pixels. A perturbation of at most the radius in Linf, clipped to the pixel
range, lets each pixel move in its own interval. The set of reachable images is therefore a box. Its
image under a monotone map of each pixel is a box as well. On a box, the worst case of a linear
classifier is a sum over pixels, which makes most of the truths one line.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

# Smallest absolute worst-case margin of the drawn images, so that rounding decides no outcome.
_MIN_MARGIN = 0.05
_WRONG_LABEL_PERIOD = 20  # one label in this many is wrong, so that clean accuracy is below 1
DEAD = -5.0  # logit of a class that is never predicted


class Affine(nn.Module):
    """z = W x + b for the flattened image, in eval mode."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.clone())
        self.bias = nn.Parameter(bias.clone())
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x.flatten(1), self.weight, self.bias)


@dataclass(frozen=True)
class Problem:
    """Labeled images, a radius, and the linear classifier z = W x + b that defines the labels."""

    x: Tensor  # [N, 1, side, side] in [0.1, 0.9]
    y: Tensor  # [N]
    radius: float  # largest change of a pixel
    weight: Tensor  # [C, d]
    bias: Tensor  # [C]

    def net(self, scale: float = 1.0) -> Affine:
        """The classifier, with its logits multiplied by `scale`."""
        return Affine(scale * self.weight, scale * self.bias)

    def box(self) -> tuple[Tensor, Tensor]:
        """The smallest and the largest reachable value of each pixel, [N, d] each."""
        x = self.x.flatten(1).double()
        return (x - self.radius).clamp(min=0), (x + self.radius).clamp(max=1)


def worst_margins(weight: Tensor, bias: Tensor, low: Tensor, high: Tensor, y: Tensor) -> Tensor:
    """[N] max over low <= x <= high of max_{j != y} z_j - z_y, where z = W x + b.

    The maximum is taken for each class j separately, with each pixel at one end of its interval.
    An image is robust if the value is negative.
    """
    weight = weight.double()
    bias = bias.double()
    values = []
    for j in range(len(weight)):
        w = weight[j] - weight[y]  # [N, d]
        value = (w * torch.where(w > 0, high, low)).sum(1) + bias[j] - bias[y]
        values.append(torch.where(y == j, -torch.inf, value))
    return torch.stack(values).amax(0)


def worst_corner(weight: Tensor, low: Tensor, high: Tensor, y: Tensor) -> Tensor:
    """[N, d] the corner of the box with the smallest margin of label y.

    The classifier has two live classes, 0 and 1.
    """
    away = weight.double()[1 - y] - weight.double()[y]
    return torch.where(away > 0, high, low)


def left(problem: Problem, low: Tensor, high: Tensor) -> float:
    """The fraction of images that the classifier predicts correctly on the whole box."""
    margins = worst_margins(problem.weight, problem.bias, low, high, problem.y)
    return float((margins < 0).double().mean())


def four_classes(n: int = 100, radius: float = 0.02, side: int = 8) -> Problem:
    """A problem with four classes that have equal logits at gray.

    Args:
        n: Number of images; default 100.
        radius: Linf radius; default 0.02.
        side: Width and height in pixels; default 8.
    """
    weight = 4 / side * _normal(0, 4, side * side)
    return _draw_problem(weight, -0.5 * weight.sum(1), n, radius)


def two_classes(n: int = 100, radius: float = 0.06, side: int = 4) -> Problem:
    """A problem with two live classes, z_0 = -z_1, so that one margin determines the prediction.

    Two more classes, which some attacks require, are never predicted.

    Args:
        n: Number of images; default 100.
        radius: Linf radius; default 0.06.
        side: Width and height in pixels; default 4.
    """
    w = 4 / side * _normal(1, side * side)
    weight = torch.stack([w / 2, -w / 2, torch.zeros_like(w), torch.zeros_like(w)])
    bias = -0.5 * weight.sum(1) + torch.tensor([0.0, 0.0, DEAD, DEAD])
    return _draw_problem(weight, bias, n, radius)


def relabeled(problem: Problem, classifier: Callable[[Tensor], Tensor]) -> Problem:
    """The same images with the labels of another classifier, some of them made wrong."""
    with torch.no_grad():
        return replace(problem, y=_corrupt_some(classifier(problem.x).argmax(1)))


def live(margin: Tensor) -> Tensor:
    """[N] -> [N, 4]: logits of two live and two dead classes; z_0 - z_1 = `margin`."""
    dead = torch.full_like(margin, DEAD)
    return torch.stack([margin / 2, -margin / 2, dead, dead], dim=1)


def toward(y: Tensor) -> Tensor:
    """[N] +1 for label 0, -1 for label 1: the sign of a margin of `live` that favors the label."""
    return 1.0 - 2.0 * y.double()


def _draw_problem(weight: Tensor, bias: Tensor, n: int, radius: float) -> Problem:
    """Draw images and keep the first n that are not close to a decision at their worst point."""
    side = math.isqrt(weight.shape[1])
    pool = 0.1 + 0.8 * torch.rand(4 * n, 1, side, side, generator=torch.Generator().manual_seed(7))
    problem = Problem(pool, (pool.flatten(1) @ weight.T + bias).argmax(1), radius, weight, bias)
    clear = worst_margins(weight, bias, *problem.box(), problem.y).abs() > _MIN_MARGIN
    problem = replace(problem, x=problem.x[clear][:n], y=_corrupt_some(problem.y[clear][:n]))
    assert len(problem.x) == n, "too few images are far enough from the decision boundary"
    return problem


def _corrupt_some(y: Tensor) -> Tensor:
    wrong = torch.arange(len(y)) % _WRONG_LABEL_PERIOD == 3
    return torch.where(wrong, 1 - y.clamp(max=1), y)


def _normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
