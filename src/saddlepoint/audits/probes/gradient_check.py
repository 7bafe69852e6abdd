"""Compares gradients with finite differences along random directions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple

import torch
from torch import Tensor

from saddlepoint.rng import Keys

# Step lengths relative to the radius. The outputs of a quantizer with a surrogate gradient are
# constant over the first one; over the last one differences agree with the surrogate.
SCALES = (1 / 64, 1 / 8, 1 / 2)
_DIRECTIONS = 4
_BATCH_DIRECTIONS = 8  # where rows are coupled: each direction gives one number, not one per row
# Relative error above which a gradient is wrong. The error of nets with exact gradients stays below
# 0.02 at the smallest step.
_WRONG = 0.2
# The error of a quantizer decreases with the step. A wrong gradient keeps this part of it.
_STEADY = 0.8
# Differences over steps of different lengths are proportional up to this relative error, if a
# function has no jumps.
_PROPORTIONAL = 0.1
# Along a direction that all rows share, and of some rows with respect to others, derivatives may be
# zero. Errors count above this part of the other derivatives.
_SMALL = 0.1
_FEW = 0.1  # fraction of images
_MOST = 0.5  # fraction of images

Value = Callable[[Tensor], Tensor]  # [N, ...] -> [N]
Values = Callable[[Sequence[Tensor]], list[Tensor]]  # K points [N, ...] -> K times [N]
WeightedGradient = Callable[[Tensor], Tensor]  # weights [N] -> [N, ...], of sum_i weights_i f_i


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

    def rescaled(self) -> Differences:
        """The same with products multiplied by the best factor >= 0 per function.

        Attacks follow the direction of a gradient; its length may be wrong.
        """
        products = (self.measured * self.predicted).sum((0, 1))
        squares = self.predicted.square().sum((0, 1))
        return Differences(self.measured, _ratio(products, squares).clamp(min=0) * self.predicted)

    def right(self) -> Tensor:
        """[M] bool: the error is small for a step length over which the function changes."""
        changes = (self.measured != 0).any(1)
        return torch.where(changes, self.errors(), torch.inf).amin(0) <= _WRONG

    def empty(self) -> Tensor:
        """[M] bool: there is nothing to compare."""
        return ((self.measured == 0) & (self.predicted == 0)).flatten(0, 1).all(0)

    def nonproportional(self) -> Tensor:
        """[M] how much differences over the two longest steps are not proportional to them.

        1 if there are no differences: a function that is constant here may jump elsewhere.
        """
        longer = SCALES[-1] / SCALES[-2]
        short = longer * self.measured[-2]
        long = self.measured[-1]
        both = (short.square() + long.square()).sum(0)
        return torch.where(both > 0, _ratio((short - long).square().sum(0), both), 1.0)

    def above(self, least: Tensor) -> Differences:
        """The same; all zero unless their size over the longest step is at least `least`."""
        larger = torch.maximum(self.measured.abs(), self.predicted.abs())[-1:]
        counts = larger.square().mean(1, keepdim=True).sqrt() > least[-1:]
        return Differences(self.measured * counts, self.predicted * counts)

    def wrong(self) -> Tensor:
        """[M] bool: the error is large for every step length, and steady."""
        errors = self.errors()
        return (errors.amin(0) > _WRONG) & (errors[-1] > _STEADY * errors[0])


def wrong_gradients(
    value: Value,
    x: Tensor,
    gradient: WeightedGradient,
    radius: float,
    keys: Keys,
    values: Values | None = None,
) -> Tensor:
    """[N] bool: the gradient differs from finite differences at every step length.

    Along random signs v, differences m = f(x + s v) - f(x - s v) are compared with products
    p = 2 s <g, v>, for every step length s. The error e = sum_v (m - p)^2 / sum_v (m^2 + p^2) is 0
    if they are equal, about 1/3 if half of the pixels have no gradient, and 2 if they are opposite.
    Rows that influence each other have no gradient of their own: sums of their values are compared.
    Rows move in directions of their own, in a direction that they share, or only those rows move
    whose values are not in the sum. All rows are reported or none.

    Args:
        value: the function, per example.
        x: points, [N, ...], at least half a radius inside the box.
        gradient: the gradient of a weighted sum of its values at these points.
        radius: the radius per pixel.
        keys: random keys of the rows.
        values: the function at several points, if rows are independent; default: one by one.
    """
    if not _coupled_rows(value, x, radius, keys):
        return _wrong_rows(value, x, gradient, radius, keys, values)
    found = _batch_differences(value, x, gradient, radius, keys)
    return torch.tensor(any(bool(each.wrong()) for each in found), device=x.device).expand(len(x))


def check_gradients(
    value: Value, x: Tensor, gradient: WeightedGradient, radius: float, keys: Keys
) -> Check:
    """How the gradients of most rows compare with differences, up to a factor per row.

    Arguments as `wrong_gradients`.
    """
    found = []
    wrong = torch.tensor(False)
    for each in _all_differences(value, x, gradient, radius, keys):
        found.append(each.rescaled())
        smooth = found[-1].nonproportional() < _PROPORTIONAL
        wrong = wrong.to(smooth) | (found[-1].wrong() & smooth)
        if several(wrong):
            return Check.WRONG
    right = torch.stack([each.right() for each in found])
    empty = torch.stack([each.empty() for each in found])
    all_right = (right | empty).all(0) & right.any(0)
    return Check.RIGHT if float(all_right.double().mean()) > _MOST else Check.UNKNOWN


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
    value: Value, x: Tensor, gradient: WeightedGradient, radius: float, keys: Keys
) -> Iterator[Differences]:
    """Of every row; of sums of rows, if they are coupled. Arguments as `wrong_gradients`."""
    if _coupled_rows(value, x, radius, keys):
        yield from _batch_differences(value, x, gradient, radius, keys)
        return
    ones = torch.ones(len(x), dtype=x.dtype, device=x.device)
    directions = list(_own_directions(x, keys, _DIRECTIONS))
    yield _differences(value, x, gradient(ones), radius, directions)


def _wrong_rows(
    value: Value,
    x: Tensor,
    gradient: WeightedGradient,
    radius: float,
    keys: Keys,
    values: Values | None,
) -> Tensor:
    """`wrong_gradients` of independent rows, without longer steps where no row can be wrong."""
    ones = torch.ones(len(x), dtype=x.dtype, device=x.device)
    directions = list(_own_directions(x, keys, _DIRECTIONS))
    grad = gradient(ones)
    parts = []
    for scale in SCALES:
        parts.append(_differences(value, x, grad, radius, directions, None, (scale,), values))
        found = Differences(*map(torch.cat, zip(*parts, strict=True)))
        # A gradient that is right over one step length is not wrong.
        if bool((found.errors().amin(0) <= _WRONG).all()):
            break
    return found.wrong()


def _coupled_rows(value: Value, x: Tensor, radius: float, keys: Keys) -> bool:
    signs = keys.fold_in(0).signs(tuple(x.shape[1:]), x.dtype)
    return coupled(value, x, signs * radius * SCALES[-1])


def _batch_differences(
    value: Value, x: Tensor, gradient: WeightedGradient, radius: float, keys: Keys
) -> Iterator[Differences]:
    """Of the sum over all rows, and of a sum over half of the rows while the others move."""
    ones = torch.ones(len(x), dtype=x.dtype, device=x.device)
    own = list(_own_directions(x, keys, _BATCH_DIRECTIONS))
    shared = [direction[:1].expand_as(direction) for direction in own[:_DIRECTIONS]]
    grad = gradient(ones)
    of_all = _differences(value, x, grad, radius, own, ones)
    yield of_all
    scale = of_all.measured.square().mean(1, keepdim=True).sqrt()  # [S, 1, 1]
    for directions in (shared, list(_smooth_directions(x))):
        yield _differences(value, x, grad, radius, directions, ones).above(_SMALL * scale)
    half = (torch.arange(len(x), device=x.device) % 2).to(x)
    # Random signs: the influences of rows of two classes would cancel.
    weights = half * keys.fold_in(0).signs((), x.dtype)
    moving = (1 - half).view(-1, *[1] * (x.ndim - 1))
    others = [moving * direction for direction in (*own[:2], *shared[2:])]
    found = _differences(value, x, gradient(weights), radius, others, weights)
    yield found.above(_SMALL * scale)


def _own_directions(x: Tensor, keys: Keys, count: int) -> Iterator[Tensor]:
    """Random signs, [N, ...] each."""
    for k in range(count):
        yield keys.fold_in(k + 1).signs(tuple(x.shape[1:]), x.dtype)


def _smooth_directions(x: Tensor) -> Iterator[Tensor]:
    """Directions that all rows share: all pixels up, and one half up, the other one down.

    Random signs leave averages over an image as they are, and so the statistics of a batch.
    """
    yield torch.ones_like(x)
    for dim in range(1, x.ndim):
        if x.shape[dim] > 1:
            half = torch.arange(x.shape[dim], device=x.device) < x.shape[dim] // 2
            yield (2 * half.to(x) - 1).view(-1, *[1] * (x.ndim - 1 - dim)).expand_as(x)


def _differences(
    value: Value,
    x: Tensor,
    grad: Tensor,
    radius: float,
    directions: list[Tensor],
    weights: Tensor | None = None,
    scales: Sequence[float] = SCALES,
    values: Values | None = None,
) -> Differences:
    """Of every row, or of the sum with weights [N]; zero if they are below the rounding error."""
    measured = []
    predicted = []
    for scale in scales:
        step = scale * radius
        points = [x + s * step * direction for direction in directions for s in (1, -1)]
        found = [value(point) for point in points] if values is None else values(points)
        for direction, up, down in zip(directions, found[::2], found[1::2], strict=True):
            m = (up - down).double()
            p = 2 * step * (grad * direction).flatten(1).sum(1).double()
            error = rounding_error(up, down, x.dtype)
            if weights is not None:
                m = (weights * m).sum(0, keepdim=True)
                p = p.sum(0, keepdim=True)
                error = (weights.abs() * error).sum(0, keepdim=True)
            significant = torch.maximum(m.abs(), p.abs()) > error
            measured.append(torch.where(significant, m, 0.0))
            predicted.append(torch.where(significant, p, 0.0))
    shape = (len(scales), len(directions), -1)
    return Differences(torch.stack(measured).view(shape), torch.stack(predicted).view(shape))


def _ratio(part: Tensor, whole: Tensor) -> Tensor:
    """The ratio; 0 where it is not defined."""
    smallest = torch.finfo(torch.float64).tiny
    relative: Tensor = (part / whole.clamp(min=smallest)).nan_to_num(0.0)
    return relative
