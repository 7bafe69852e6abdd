"""The images on which the self-test's defenses are attacked, and the exact worst case of a linear classifier on a box.

Images have 64 pixels, or 16. A perturbation of at most the radius in Linf, cut off at the pixel range, lets each pixel move in an
interval of its own, so what an attacker reaches is a box; so is its image under a map that acts on each pixel alone and keeps their
order. On a box a linear classifier's worst case is a sum over pixels, which makes most of the truths below one line.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

_CLEAR = 0.05  # how far worst margins of the drawn images stay from zero, so that no verdict hangs on rounding
_MISTAKES = 20  # every so many-th label is wrong from the start
DEAD = -5.0  # the logit of a class that never wins


class Affine(nn.Module):
    """z = W x + b of the flattened image, in eval mode."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.clone())
        self.bias = nn.Parameter(bias.clone())
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x.flatten(1), self.weight, self.bias)


@dataclass(frozen=True)
class Problem:
    """Images with labels, how far each pixel may move, and the linear classifier z = W x + b that gave the labels."""

    x: Tensor  # [N, 1, side, side] in [0.1, 0.9]
    y: Tensor  # [N]
    radius: float
    weight: Tensor  # [C, d]
    bias: Tensor  # [C]

    def net(self, scale: float = 1.0) -> Affine:
        """The classifier, its logits multiplied by `scale`."""
        return Affine(scale * self.weight, scale * self.bias)

    def box(self) -> tuple[Tensor, Tensor]:
        """[N, d] twice: the least and the greatest value that each pixel can be given."""
        x = self.x.flatten(1).double()
        return (x - self.radius).clamp(min=0), (x + self.radius).clamp(max=1)


def worst_margins(weight: Tensor, bias: Tensor, low: Tensor, high: Tensor, y: Tensor) -> Tensor:
    """[N] max over low <= x <= high of max_{j != y} z_j - z_y, z = W x + b: class by class, each pixel at one of its ends."""
    weight = weight.double()
    bias = bias.double()
    values = []
    for j in range(len(weight)):
        w = weight[j] - weight[y]  # [N, d]
        value = (w * torch.where(w > 0, high, low)).sum(1) + bias[j] - bias[y]
        values.append(torch.where(y == j, -torch.inf, value))
    return torch.stack(values).amax(0)


def worst_corner(weight: Tensor, low: Tensor, high: Tensor, y: Tensor) -> Tensor:
    """[N, d] the corner at which label y of a classifier with two live classes, 0 and 1, does worst."""
    away = weight.double()[1 - y] - weight.double()[y]
    return torch.where(away > 0, high, low)


def left(problem: Problem, low: Tensor, high: Tensor) -> float:
    """The share of images that the problem's classifier answers rightly on the whole of a box."""
    return float(
        (worst_margins(problem.weight, problem.bias, low, high, problem.y) < 0).double().mean()
    )


def four_classes(n: int = 100, radius: float = 0.02, side: int = 8) -> Problem:
    """Four classes that meet at gray."""
    weight = 4 / side * _normal(0, 4, side * side)
    return _drawn(weight, -0.5 * weight.sum(1), n, radius)


def two_classes(n: int = 100, radius: float = 0.06, side: int = 4) -> Problem:
    """Two live classes with z_0 = -z_1, so that one margin tells all; two more, which some attacks need, never win."""
    w = 4 / side * _normal(1, side * side)
    weight = torch.stack([w / 2, -w / 2, torch.zeros_like(w), torch.zeros_like(w)])
    bias = -0.5 * weight.sum(1) + torch.tensor([0.0, 0.0, DEAD, DEAD])
    return _drawn(weight, bias, n, radius)


def relabeled(problem: Problem, answers: Callable[[Tensor], Tensor]) -> Problem:
    """The same images with the labels that another classifier gives them, some of them wrong."""
    with torch.no_grad():
        return replace(problem, y=_some_wrong(answers(problem.x).argmax(1)))


def live(margin: Tensor) -> Tensor:
    """[N] -> [N, 4]: logits of two live classes, class 0 by `margin` ahead of class 1."""
    dead = torch.full_like(margin, DEAD)
    return torch.stack([margin / 2, -margin / 2, dead, dead], dim=1)


def toward(y: Tensor) -> Tensor:
    """[N] +1 for label 0, -1 for label 1: the sign with which `live`'s margin speaks for the label."""
    return 1.0 - 2.0 * y.double()


def _drawn(weight: Tensor, bias: Tensor, n: int, radius: float) -> Problem:
    side = math.isqrt(weight.shape[1])
    pool = 0.1 + 0.8 * torch.rand(4 * n, 1, side, side, generator=torch.Generator().manual_seed(7))
    problem = Problem(pool, (pool.flatten(1) @ weight.T + bias).argmax(1), radius, weight, bias)
    clear = worst_margins(weight, bias, *problem.box(), problem.y).abs() > _CLEAR
    problem = replace(problem, x=problem.x[clear][:n], y=_some_wrong(problem.y[clear][:n]))
    assert len(problem.x) == n, "too few images are clear of the boundary"
    return problem


def _some_wrong(y: Tensor) -> Tensor:
    return torch.where(torch.arange(len(y)) % _MISTAKES == 3, 1 - y.clamp(max=1), y)


def _normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
