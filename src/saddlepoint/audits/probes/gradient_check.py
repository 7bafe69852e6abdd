"""Compares gradients with finite differences along random directions."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from saddlepoint.rng import Keys

# Step lengths relative to the radius. The outputs of a quantizer with a surrogate gradient are
# constant over the first one; over the last one differences agree with the surrogate.
SCALES = (1 / 64, 1 / 8, 1 / 2)
_DIRECTIONS = 4
# Relative error above which a gradient is wrong. The error of nets with exact gradients stays below
# 0.02 at the smallest step.
_WRONG = 0.2
# The error of a quantizer decreases with the step. A wrong gradient keeps this part of it.
_STEADY = 0.8

Value = Callable[[Tensor], Tensor]  # [N, ...] -> [N]


def wrong_gradients(value: Value, x: Tensor, grad: Tensor, radius: float, keys: Keys) -> Tensor:
    """[N] bool: the gradient differs from finite differences at every step length.

    Along random signs v, differences m = f(x + s v) - f(x - s v) are compared with products
    p = 2 s <g, v>, for every step length s. The error e = sum_v (m - p)^2 / sum_v (m^2 + p^2) is 0
    if they are equal, about 1/3 if half of the pixels have no gradient, and 2 if they are opposite.
    Rows that influence each other have no gradient of their own; none of them is reported.

    Args:
        value: the function, per example.
        x: points, [N, ...], at least half a radius inside the box.
        grad: its gradient at these points, [N, ...].
        radius: the radius per pixel.
        keys: random keys of the rows.
    """
    step = keys.fold_in(0).signs(tuple(x.shape[1:]), x.dtype) * radius * SCALES[-1]
    if _coupled(value, x, step):
        return torch.zeros(len(x), dtype=torch.bool, device=x.device)
    errors = torch.stack([_error(value, x, grad, s * radius, keys) for s in SCALES])  # [S, N]
    return (errors.amin(0) > _WRONG) & (errors[-1] > _STEADY * errors[0])


def rounding_error(up: Tensor, down: Tensor, dtype: torch.dtype) -> Tensor:
    """[N] the rounding error of a difference of two values [N] computed in `dtype`."""
    return 64 * torch.finfo(dtype).eps * (up.abs() + down.abs() + 1).double()


def _error(value: Value, x: Tensor, grad: Tensor, step: float, keys: Keys) -> Tensor:  # [N]
    squared_error = torch.zeros(len(x), dtype=torch.float64, device=x.device)
    total = torch.zeros_like(squared_error)
    for k in range(_DIRECTIONS):
        direction = keys.fold_in(k + 1).signs(tuple(x.shape[1:]), x.dtype)
        up = value(x + step * direction)
        down = value(x - step * direction)
        measured = (up - down).double()
        predicted = 2 * step * (grad * direction).flatten(1).sum(1).double()
        larger = torch.maximum(measured.abs(), predicted.abs())
        significant = larger > rounding_error(up, down, x.dtype)
        error = (measured - predicted).square()
        squared_error = squared_error + torch.where(significant, error, 0.0)
        both = measured.square() + predicted.square()
        total = total + torch.where(significant, both, 0.0)
    smallest = torch.finfo(torch.float64).tiny
    relative: Tensor = (squared_error / total.clamp(min=smallest)).nan_to_num(0.0)
    return relative


def _coupled(value: Value, x: Tensor, step: Tensor) -> bool:
    """Whether a step of the first row changes the values of other rows."""
    moved = torch.cat([x[:1] + step[:1], x[1:]])
    before = value(x)[1:]
    after = value(moved)[1:]
    return bool(((after - before).abs() > rounding_error(before, after, x.dtype)).any())
