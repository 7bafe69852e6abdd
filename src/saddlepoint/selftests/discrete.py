"""Defenses that map each pixel to few values, or ignore it in a part of its range."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn

from saddlepoint.selftests.case import Case, Truth, truth_after
from saddlepoint.selftests.problem import Problem, live, relabeled, two_classes

_OFFSET = 6.0  # most images are of the class that two changed bits lead away from
_DEAD_ZONE = 0.08  # pixels have no influence within this distance of gray
_STEPS = 3.0  # four levels
_BITS_RADIUS = 0.25


class BitsNet(nn.Module):
    """A two-layer net on the bits b_i = 1[x_i > 1/2], by a comparison inside its forward pass.

    The margin is the sum of u_j (2.5 max(b + b' - 1, 0) - (b + b') / 2) over pairs of neighboring
    bits: one changed bit lowers it by u_j / 2, two of them together raise it by 1.5 u_j.
    """

    def __init__(self, pixels: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(12)
        self.weight = 0.5 + torch.rand(pixels // 2, generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        return self.on_bits(torch.where(x.flatten(1) > 0.5, 1.0, 0.0).to(x.dtype))

    def on_bits(self, bits: Tensor) -> Tensor:
        """The logits, [N, 4], of bits, [N, d]."""
        both = bits.view(len(bits), -1, 2).sum(2)
        pairs = 2.5 * (both - 1).relu() - both / 2
        return live(pairs @ self.weight.to(bits.dtype) - _OFFSET)


class DeadZone(nn.Module):
    """Moves each pixel towards gray, and all pixels close to gray to gray itself."""

    def forward(self, x: Tensor) -> Tensor:
        return dead_zone(x)


def dead_zone(x: Tensor) -> Tensor:
    """1/2 + s max(|x - 1/2| - w, 0), where s is the sign of x - 1/2 and w half the width."""
    off = x - 0.5
    return 0.5 + off.sign() * (off.abs() - _DEAD_ZONE).relu()


class FewLevels(nn.Module):
    """The linear net on pixels that integer division maps to four levels, without layers."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        level = ((255 * x).int() + 43).div(85, rounding_mode="floor")
        values = torch.tensor([0.0, 1 / _STEPS, 2 / _STEPS, 1.0]).to(x.dtype)
        return cast(Tensor, self.net(values[level]))


def few_levels(x: Tensor) -> Tensor:
    """The pixel values of `FewLevels`."""
    return ((255 * x).floor() + 43).div(85, rounding_mode="floor") / _STEPS


def worst_bits(net: BitsNet, problem: Problem) -> Tensor:
    """[N] bool: the net is right at every combination of bits that an image can reach."""
    low, high = problem.box()
    robust = []
    for row, label in enumerate(problem.y.tolist()):
        first = low[row] > 0.5
        free = (first != (high[row] > 0.5)).nonzero()[:, 0]
        combination = torch.arange(2 ** len(free))[:, None] >> torch.arange(len(free)) & 1
        bits = first.repeat(len(combination), 1)
        bits[:, free] = combination.bool()
        robust.append(bool((net.on_bits(bits.float()).argmax(1) == label).all()))
    return torch.tensor(robust)


def _bits_problem() -> Problem:
    problem = two_classes(radius=_BITS_RADIUS)
    return relabeled(problem, BitsNet(problem.weight.shape[1]))


def _bits_truth(problem: Problem) -> Truth:
    """Tries all combinations of bits; an image has 16 pixels."""
    return Truth.of(worst_bits(BitsNet(problem.weight.shape[1]), problem))


def _relabeled_by(pixelwise: Callable[[Tensor], Tensor]) -> Problem:
    problem = two_classes()
    net = problem.net()
    return relabeled(problem, lambda x: cast(Tensor, net(pixelwise(x))))


CASES = (
    Case(
        "bits of pixels",
        "a two-layer net sees one bit per pixel, and bits have an effect only together",
        _bits_problem,
        lambda p: BitsNet(p.weight.shape[1]).eval(),
        _bits_truth,
    ),
    Case(
        "dead zone",
        "pixels close to gray have no influence and no gradient",
        lambda: _relabeled_by(dead_zone),
        lambda p: nn.Sequential(DeadZone(), p.net()).eval(),
        truth_after(dead_zone),
    ),
    Case(
        "few levels",
        "integer division inside the forward pass leaves four levels per pixel",
        lambda: _relabeled_by(few_levels),
        lambda p: FewLevels(p.net()).eval(),
        truth_after(few_levels),
    ),
)
