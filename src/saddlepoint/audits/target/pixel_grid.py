"""Attacks on images with 8-bit pixel values, which a target may treat differently from others."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from saddlepoint.attacks.best import AttackResult
from saddlepoint.attacks.spaces import Ball
from saddlepoint.defenses import Context, Defense, DefenseWrapper, Trace
from saddlepoint.evaluation.adversary import Adversary, AdversaryWrapper
from saddlepoint.evaluation.attack_context import AttackContext
from saddlepoint.gradients.rule import straight_through

_LEVELS = 255
_ROUNDING = 1e-3  # of a level
_AT_ONCE = 256  # images


def on_grid(x: Tensor) -> bool:
    """Whether all pixels of images [N, ...] are multiples of 1/255."""
    return all(map(_part_on_grid, torch.split(x, _AT_ONCE)))


def _part_on_grid(x: Tensor) -> bool:
    levels = x * _LEVELS
    return bool(((levels - levels.round()).abs() < _ROUNDING).all())


def snapped(points: Tensor, x: Tensor, space: Ball) -> Tensor:
    """The nearest points [N, ...] on the grid inside the Linf ball around images x [N, ...]."""
    low, high = space.box
    lowest = ((x - space.radius).clamp(min=low) * _LEVELS - _ROUNDING).ceil()
    highest = ((x + space.radius).clamp(max=high) * _LEVELS + _ROUNDING).floor()
    return (points * _LEVELS).round().clamp(lowest, highest) / _LEVELS


class SnappedInputs(DefenseWrapper):
    """A defense behind a rounding of pixels to the grid, with the identity as its backward pass."""

    replaces_views: ClassVar[bool] = False

    def __init__(self, inner: Defense, x: Tensor, space: Ball) -> None:
        super().__init__(inner)
        self.x = x
        self.space = space

    def rewrap(self, inner: Defense, rows: Tensor | None = None) -> Defense:
        return SnappedInputs(inner, self.x if rows is None else self.x[rows], self.space)

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        with torch.no_grad():
            points = snapped(x, self.x, self.space)
        return self.inner.trace(straight_through(x, points), ctx)


@dataclass(frozen=True)
class OnGrid(AdversaryWrapper):
    """The adversary limited to images with 8-bit pixel values, in Linf."""

    @property
    def name(self) -> str:
        return f"{self.adversary.name}-grid"

    def single_run(self) -> Adversary | None:
        inner = self.adversary.single_run()
        return None if inner is None else OnGrid(inner)

    def move(self, context: AttackContext, defense: Defense, x: Tensor, y: Tensor) -> AttackResult:
        space = context.threat.space
        if space.p != math.inf:
            raise ValueError(f"attacks on the grid of pixel values need Linf, got {space}.")
        result = self.adversary.move(context, SnappedInputs(defense, x, space), x, y)
        return AttackResult(
            snapped(result.point, x, space), snapped(result.max_loss_point, x, space)
        )
