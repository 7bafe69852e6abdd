"""Differentiable surrogates of operations with discrete results, and of what uses the results.

A tensor of integers or booleans that was computed from floating-point numbers has a soft partner: a
floating-point tensor of the same values, with a gradient. Every operation on the discrete tensor is
repeated on the partner. The result has the exact value and the gradient of the repetition.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from saddlepoint.gradients.rule import straight_through

_MOST_CHOICES = 64  # options of a look-up that are evaluated one by one


class Soft(NamedTuple):
    """The partner of a discrete tensor."""

    value: Tensor  # the same values in floating point
    weights: Tensor | None = None  # [..., K] of an index that was chosen by scores: their softmax


def step(argument: Tensor, width: float) -> Tensor:
    """A smooth step 1[argument > 0]."""
    return (argument / width).sigmoid()


def chosen(scores: Tensor, exact: Tensor, dim: int, temperature: float) -> Soft:
    """The soft index of the highest score.

    Args:
        scores: the scores that were compared.
        exact: the index, with or without the dimension `dim`.
        dim: the dimension of the options.
        temperature: of the softmax, in units of the standard deviation of the scores.
    """
    scale = scores.detach().std(dim, keepdim=True).clamp(min=torch.finfo(scores.dtype).tiny)
    weights = (scores / (temperature * scale)).softmax(dim).movedim(dim, -1)
    weights = weights.reshape(*exact.shape, weights.shape[-1])
    options = torch.arange(weights.shape[-1], device=weights.device, dtype=weights.dtype)
    return Soft(straight_through((weights * options).sum(-1), exact.to(weights.dtype)), weights)


def ranked(scores: Tensor, values: Tensor, exact: Tensor, dim: int, temperature: float) -> Soft:
    """The soft indices of sorted values (SoftSort, Prillo & Eisenschlos 2020, Eq. 4).

    Args:
        scores: the scores that were sorted.
        values: the selected scores in order.
        exact: their indices.
        dim: the dimension of the options.
        temperature: of the softmax, in units of the standard deviation of the scores.
    """
    scale = scores.detach().std(dim, keepdim=True).clamp(min=torch.finfo(scores.dtype).tiny)
    distance = (values.movedim(dim, -1)[..., None] - scores.movedim(dim, -1)[..., None, :]).abs()
    scale = scale.movedim(dim, -1)[..., None]
    place = dim if dim >= 0 else dim - 1  # the options are one more dimension
    weights = (-distance / (temperature * scale)).softmax(-1).movedim(-2, place)
    options = torch.arange(weights.shape[-1], device=weights.device, dtype=weights.dtype)
    return Soft(straight_through((weights * options).sum(-1), exact.to(weights.dtype)), weights)


def look_up(
    read: Callable[[Tensor], Tensor], index: Tensor, soft: Soft, size: int | None
) -> Tensor | None:
    """The result of a look-up with the gradient of its soft index; None if shapes do not fit.

    An index that was chosen by scores gives the mean of all entries with the weights of the scores.
    Any other index gives the slope of the table.

    Args:
        read: from an index to the entries of the table.
        index: the exact index.
        soft: its partner.
        size: number of entries; None if every integer is an index.
    """
    exact = read(index)
    if not exact.is_floating_point():
        exact = exact.to(soft.value.dtype)
    weights = soft.weights
    if weights is not None and weights.shape[-1] <= _MOST_CHOICES:
        change = torch.zeros_like(exact)
        for k in range(weights.shape[-1]):
            entry = read(torch.full_like(index, k)).detach().to(exact)
            weight = _expand(weights[..., k], entry)
            if weight is None:
                return None
            change = change + weight * entry
        return straight_through(exact + change, exact)
    last = None if size is None else size - 1
    above = (index + 1).clamp(max=last) if last is not None else index + 1
    below = (index - 1).clamp(min=0) if last is not None else index - 1
    rise = (read(above).to(exact) - read(below).to(exact)).detach()
    run = _expand((above - below).clamp(min=1).to(exact), rise)
    value = _expand(soft.value, rise)
    if run is None or value is None:
        return None
    return straight_through(exact + rise / run * value, exact)


def select(mask: Tensor, if_true: Any, if_false: Any, exact: Tensor) -> Tensor:
    """`exact` = where(mask, if_true, if_false) with the gradient of its soft mask [...]."""
    difference = torch.as_tensor(if_true).detach() - torch.as_tensor(if_false).detach()
    change = mask * difference.to(exact)
    return straight_through(exact + change.expand_as(exact), exact)


def logical(name: str, values: list[Tensor]) -> Tensor | None:
    """The soft result of a logical function of soft booleans; None for other functions."""
    first = values[0]
    match name, values:
        case "and", [_, second]:
            # A product would have no gradient where both are false.
            return torch.minimum(first, second)
        case "or", [_, second]:
            return torch.maximum(first, second)
        case "xor", [_, second]:
            return first + second - 2 * first * second
        case (("not" | "invert"), [_]):
            return 1 - first
    return None


def _expand(value: Tensor, like: Tensor) -> Tensor | None:
    """`value` with further dimensions of size 1, to multiply a tensor that starts like it."""
    if value.shape == like.shape[: value.ndim]:
        return value.reshape(*value.shape, *[1] * (like.ndim - value.ndim))
    trailing = zip(reversed(value.shape), reversed(like.shape), strict=False)
    fits = value.ndim <= like.ndim and all(a in (1, b) for a, b in trailing)
    return value if fits else None
