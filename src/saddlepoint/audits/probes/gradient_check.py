"""Compares gradients with finite differences along random directions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import NamedTuple

import torch
from torch import Tensor

from saddlepoint.rng import Keys

# Step lengths relative to the radius. The outputs of a quantizer with a surrogate gradient are
# constant over the first one; over the last one differences agree with the surrogate.
SCALES = (1 / 64, 1 / 8, 1 / 2)
_DIRECTIONS = 4
_BATCH_DIRECTIONS = 12  # where rows are coupled: each direction gives one number, not one per row
# Relative error above which a gradient is wrong. The error of nets with exact gradients stays below
# 0.02 at the smallest step.
_WRONG = 0.2
# The error of a quantizer decreases with the step. A wrong gradient keeps this part of it.
_STEADY = 0.8
# Differences over steps of different lengths are proportional up to this relative error, if a
# function has no jumps.
_PROPORTIONAL = 0.1
# Along a common direction of all rows the true derivative may be zero (batch normalization). Errors
# count above this part of the derivatives along other directions.
_COMMON = 0.1
_FEW = 0.1  # fraction of images
_MOST = 0.5  # fraction of images

Value = Callable[[Tensor], Tensor]  # [N, ...] -> [N]


class Check(IntEnum):
    """How gradients compare with differences, from best to worst."""

    RIGHT = 0  # they agree
    UNKNOWN = 1  # differences jump, so that there is no gradient to compare with
    WRONG = 2  # differences are proportional to steps, but not those that gradients predict


class Differences(NamedTuple):
    """Differences of a function and products with its gradient; K directions, M functions."""

    measured: Tensor  # [S, K, M]
    predicted: Tensor  # [S, K, M]

    def errors(self) -> Tensor:
        """[S, M] sum_k (m - p)^2 / sum_k (m^2 + p^2), for every step length."""
        error = (self.measured - self.predicted).square().sum(1)
        both = (self.measured.square() + self.predicted.square()).sum(1)
        return _ratio(error, both)

    def nonproportional(self) -> Tensor:
        """[M] how much differences over the two longest steps are not proportional to them.

        1 if there are no differences: a function that is constant here may jump elsewhere.
        """
        longer = SCALES[-1] / SCALES[-2]
        short = longer * self.measured[-2]
        long = self.measured[-1]
        both = (short.square() + long.square()).sum(0)
        return torch.where(both > 0, _ratio((short - long).square().sum(0), both), 1.0)

    def wrong(self) -> Tensor:
        """[M] bool: the error is large for every step length, and steady."""
        errors = self.errors()
        return (errors.amin(0) > _WRONG) & (errors[-1] > _STEADY * errors[0])


def wrong_gradients(value: Value, x: Tensor, grad: Tensor, radius: float, keys: Keys) -> Tensor:
    """[N] bool: the gradient differs from finite differences at every step length.

    Along random signs v, differences m = f(x + s v) - f(x - s v) are compared with products
    p = 2 s <g, v>, for every step length s. The error e = sum_v (m - p)^2 / sum_v (m^2 + p^2) is 0
    if they are equal, about 1/3 if half of the pixels have no gradient, and 2 if they are opposite.
    Rows that influence each other have no gradient of their own: the sum of their values is
    compared, along directions of their own and along directions that they share, and all rows are
    reported or none.

    Args:
        value: the function, per example.
        x: points, [N, ...], at least half a radius inside the box.
        grad: its gradient at these points, [N, ...]; of the sum, if rows are coupled.
        radius: the radius per pixel.
        keys: random keys of the rows.
    """
    found = _all_differences(value, x, grad, radius, keys)
    wrong = torch.stack([each.wrong() for each in found]).any(0)
    return wrong.expand(len(x))


def check_gradients(value: Value, x: Tensor, grad: Tensor, radius: float, keys: Keys) -> Check:
    """How the gradients of most rows compare with differences; arguments as `wrong_gradients`."""
    found = _all_differences(value, x, grad, radius, keys)
    smooth = torch.stack([each.nonproportional() < _PROPORTIONAL for each in found])
    wrong = torch.stack([each.wrong() for each in found]) & smooth
    right = torch.stack([each.errors().amin(0) <= _WRONG for each in found])
    if several(wrong.any(0)):
        return Check.WRONG
    return Check.RIGHT if bool(right.all(0).double().mean() > _MOST) else Check.UNKNOWN


def several(rows: Tensor) -> bool:
    """Whether more than one image and a tenth of the images, or all of them, are selected."""
    return bool(rows.all()) or int(rows.sum()) > max(1, _FEW * len(rows))


def rounding_error(up: Tensor, down: Tensor, dtype: torch.dtype) -> Tensor:
    """[N] the rounding error of a difference of two values [N] computed in `dtype`."""
    return 64 * torch.finfo(dtype).eps * (up.abs() + down.abs() + 1).double()


def coupled(value: Value, x: Tensor, step: Tensor) -> bool:
    """Whether a step of the first row changes the values of other rows."""
    moved = torch.cat([x[:1] + step[:1], x[1:]])
    before = value(x)[1:]
    after = value(moved)[1:]
    return bool(((after - before).abs() > rounding_error(before, after, x.dtype)).any())


def _all_differences(
    value: Value, x: Tensor, grad: Tensor, radius: float, keys: Keys
) -> list[Differences]:
    """Of every row; of the total, if rows are coupled."""
    step = keys.fold_in(0).signs(tuple(x.shape[1:]), x.dtype) * radius * SCALES[-1]
    if coupled(value, x, step):
        return list(_batch_differences(value, x, grad, radius, keys))
    directions = list(_own_directions(x, keys, _DIRECTIONS))
    return [_differences(value, x, grad, radius, directions, total=False)]


def _batch_differences(
    value: Value, x: Tensor, grad: Tensor, radius: float, keys: Keys
) -> Iterator[Differences]:
    """Of the sum over rows: along directions of each row, and along directions common to all."""
    own = list(_own_directions(x, keys, _BATCH_DIRECTIONS))
    of_own = _differences(value, x, grad, radius, own, total=True)
    yield of_own
    common = [direction[:1].expand_as(direction) for direction in own[:_DIRECTIONS]]
    found = _differences(value, x, grad, radius, common, total=True)
    scale = of_own.measured.square().mean(1, keepdim=True).sqrt()  # [S, 1, 1]
    larger = torch.maximum(found.measured.abs(), found.predicted.abs())
    counts = larger > _COMMON * scale
    yield Differences(found.measured * counts, found.predicted * counts)


def _own_directions(x: Tensor, keys: Keys, count: int) -> Iterator[Tensor]:
    """Random signs, [N, ...] each."""
    for k in range(count):
        yield keys.fold_in(k + 1).signs(tuple(x.shape[1:]), x.dtype)


def _differences(
    value: Value, x: Tensor, grad: Tensor, radius: float, directions: list[Tensor], *, total: bool
) -> Differences:
    """Of every row, or of the total over rows; zero where they are below the rounding error."""
    measured = []
    predicted = []
    for scale in SCALES:
        step = scale * radius
        for direction in directions:
            up = value(x + step * direction)
            down = value(x - step * direction)
            m = (up - down).double()
            p = 2 * step * (grad * direction).flatten(1).sum(1).double()
            error = rounding_error(up, down, x.dtype)
            if total:
                m = m.sum(0, keepdim=True)
                p = p.sum(0, keepdim=True)
                error = error.sum(0, keepdim=True)
            significant = torch.maximum(m.abs(), p.abs()) > error
            measured.append(torch.where(significant, m, 0.0))
            predicted.append(torch.where(significant, p, 0.0))
    shape = (len(SCALES), len(directions), -1)
    return Differences(torch.stack(measured).view(shape), torch.stack(predicted).view(shape))


def _ratio(part: Tensor, whole: Tensor) -> Tensor:
    """The ratio; 0 where it is not defined."""
    smallest = torch.finfo(torch.float64).tiny
    relative: Tensor = (part / whole.clamp(min=smallest)).nan_to_num(0.0)
    return relative
