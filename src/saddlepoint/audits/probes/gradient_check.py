"""Gradients beside differences of what is answered: what a gradient leaves out shows along directions that it did not choose."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from saddlepoint.rng import Keys

SCALES = (
    1 / 64,
    1 / 8,
    1 / 2,
)  # of the radius: a quantizer with a surrogate gradient is flat nearby and right from afar
_DIRECTIONS = 4
_LEFT_OUT = (
    0.2  # of both together; nets whose gradient is the slope stay below 0.02 at the nearest scale
)
_STEADY = 0.8  # of the error nearby: one that shrinks with distance is a quantizer's

Value = Callable[[Tensor], Tensor]  # [N, ...] -> [N]


def unfaithful(value: Value, x: Tensor, grad: Tensor, radius: float, keys: Keys) -> Tensor:
    """[N] bool: the gradient is not the slope of the value, near or far. x lies half a radius inside the box.

    Along random signs v, differences m = f(x + s v) - f(x - s v) against products p = 2 s <g, v>, at every step length s:
    e = sum_v (m - p)^2 / sum_v (m^2 + p^2) is 0 where they are equal, about 1/3 where half of the pixels have no gradient, 2 where
    they are opposite. Rows that answer together have no slopes of their own, and are not judged.
    """
    if _together(
        value, x, keys.fold_in(0).signs(tuple(x.shape[1:]), x.dtype) * radius * SCALES[-1]
    ):
        return torch.zeros(len(x), dtype=torch.bool, device=x.device)
    errors = torch.stack(
        [_error(value, x, grad, scale * radius, keys) for scale in SCALES]
    )  # [S, N]
    return (errors.amin(0) > _LEFT_OUT) & (errors[-1] > _STEADY * errors[0])


def rounding(up: Tensor, down: Tensor, dtype: torch.dtype) -> Tensor:
    """Below this, a difference of two values says nothing."""
    return 64 * torch.finfo(dtype).eps * (up.abs() + down.abs() + 1).double()


def _error(value: Value, x: Tensor, grad: Tensor, step: float, keys: Keys) -> Tensor:  # [N]
    apart, both = torch.zeros(2, len(x), dtype=torch.float64, device=x.device)
    for k in range(_DIRECTIONS):
        along = keys.fold_in(k + 1).signs(tuple(x.shape[1:]), x.dtype)
        up = value(x + step * along)
        down = value(x - step * along)
        measured = (up - down).double()
        predicted = 2 * step * (grad * along).flatten(1).sum(1).double()
        heard = torch.maximum(measured.abs(), predicted.abs()) > rounding(up, down, x.dtype)
        apart = apart + torch.where(heard, (measured - predicted).square(), 0.0)
        both = both + torch.where(heard, measured.square() + predicted.square(), 0.0)
    error: Tensor = (apart / both.clamp(min=torch.finfo(torch.float64).tiny)).nan_to_num(0.0)
    return error


def _together(value: Value, x: Tensor, step: Tensor) -> bool:
    """Does a step of the first row change what is answered about others?"""
    first = torch.cat([x[:1] + step[:1], x[1:]])
    before = value(x)[1:]
    after = value(first)[1:]
    return bool(((after - before).abs() > rounding(before, after, x.dtype)).any())
