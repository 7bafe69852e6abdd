"""Finite choices per pixel: the levels of a quantizer, or the ends of the interval of a pixel."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Protocol

import torch
from torch import Tensor

from saddlepoint.attacks.spaces import Ball

# Representatives stay this far away from the ends of the interval of their level, in units of the
# box, where the perturbation set allows it: rounding may differ between batch sizes.
_INSIDE = 1e-5


@dataclass(frozen=True, eq=False)
class Options:
    """What each pixel of each example can be set to. Options are numbered in order of values."""

    center: Tensor  # [N, d] clean inputs
    lowest: Tensor  # [N, d] int64, the lowest option in the perturbation set
    highest: Tensor  # [N, d] int64, the highest option in the perturbation set
    clean: Tensor  # [N, d] int64, the option of the clean input
    low: Tensor  # [N, d] lowest pixel value in the perturbation set
    high: Tensor  # [N, d] highest pixel value in the perturbation set
    choices: Choices

    def __getitem__(self, rows: Tensor) -> Options:
        parts = {f.name: getattr(self, f.name)[rows] for f in fields(self) if f.name != "choices"}
        return replace(self, **parts)

    @property
    def free(self) -> Tensor:
        """[N, d] bool: pixels with more than one option."""
        return self.highest > self.lowest

    @property
    def combinations(self) -> Tensor:
        """[N] how many points all options together make; infinite if they are too many."""
        span = (self.highest - self.lowest + 1).double()
        return span.log2().sum(1).exp2().round()

    def combination(self, number: int) -> Tensor:
        """[N, d] the combination of options with this number; all numbers give all of them."""
        span = self.highest - self.lowest + 1
        # How many combinations the pixels before each one have. Larger numbers never count.
        before = torch.cat([torch.ones_like(span[:, :1]), span[:, :-1]], dim=1)
        stride = before.double().cumprod(1).clamp(max=2.0**62).long()
        return self.lowest + (number // stride) % span

    def values(self, option: Tensor) -> Tensor:
        """[N, d] a pixel value inside the perturbation set for each option, [N, d]."""
        return self.choices.values(option, self)

    def positions(self, option: Tensor) -> Tensor:
        """[N, d] where an option lies on the axis along which gradients are extrapolated."""
        return self.choices.positions(option, self)


class Choices(Protocol):
    """Maps clean inputs to the options of their pixels."""

    def options(self, center: Tensor, space: Ball) -> Options:
        """The options of each pixel of clean inputs, [N, ...]."""
        ...

    def values(self, option: Tensor, options: Options) -> Tensor:
        """See `Options.values`."""
        ...

    def positions(self, option: Tensor, options: Options) -> Tensor:
        """See `Options.positions`."""
        ...


@dataclass(frozen=True)
class Ends:
    """Three options per pixel: the lowest one, the clean one and the highest one.

    An end that equals the clean value is left out.
    """

    def options(self, center: Tensor, space: Ball) -> Options:
        flat, low, high = _intervals(center, space)
        middle = torch.ones_like(flat, dtype=torch.long)
        first = torch.where(low < flat, 0, 1)
        last = torch.where(high > flat, 2, 1)
        return Options(flat, first, last, middle, low, high, self)

    def values(self, option: Tensor, options: Options) -> Tensor:
        ends = torch.where(option < 1, options.low, options.high)
        return torch.where(option == 1, options.center, ends)

    def positions(self, option: Tensor, options: Options) -> Tensor:
        return self.values(option, options)


@dataclass(frozen=True, eq=False)
class PixelLevels:
    """The intervals of pixel values on which a target computes the same code of the pixel.

    The value of an option is the one closest to the clean pixel. Its position is the middle of its
    interval, so that a change of level counts the same wherever in its interval the pixel is.

    Args:
        start: lowest value of each interval in increasing order, [P, L], where P is 1 if all pixels
            have the same intervals, else the number of pixels. A pixel with fewer intervals has
            infinite entries at the end.
        end: highest value of each interval, [P, L]; infinite where `start` is.
    """

    start: Tensor
    end: Tensor

    def __len__(self) -> int:
        """The largest number of intervals of a pixel."""
        return self.start.shape[1]

    def options(self, center: Tensor, space: Ball) -> Options:
        flat, low, high = _intervals(center, space)
        start = self.start.to(flat)
        last = _count(start, high) - 1
        clean = _count(start, flat) - 1
        # The first interval that ends at or above the lowest value.
        first = _count(self.end.to(flat), low, right=False)
        return Options(
            flat, torch.minimum(first, clean), torch.maximum(last, clean), clean, low, high, self
        )

    def values(self, option: Tensor, options: Options) -> Tensor:
        start, end = self._interval(option, options)
        width = end - start
        inside = torch.minimum(width / 4, torch.full_like(width, _INSIDE))
        nearest = torch.clamp(options.center, start + inside, end - inside)
        return torch.clamp(nearest, options.low, options.high)

    def positions(self, option: Tensor, options: Options) -> Tensor:
        start, end = self._interval(option, options)
        return (start + end) / 2

    def _interval(self, option: Tensor, options: Options) -> tuple[Tensor, Tensor]:
        tables = (self.start.to(options.center), self.end.to(options.center))
        if len(self.start) == 1:
            start, end = (table[0][option] for table in tables)
        else:
            start, end = (table.gather(1, option.T).T for table in tables)
        return start, end


def _intervals(center: Tensor, space: Ball) -> tuple[Tensor, Tensor, Tensor]:
    """Clean pixels and their lowest and highest values in a Linf ball, [N, d] each."""
    flat = center.flatten(1)
    low = (flat - space.radius).clamp(*space.box)
    high = (flat + space.radius).clamp(*space.box)
    return flat, low, high


def _count(table: Tensor, values: Tensor, *, right: bool = True) -> Tensor:
    """[N, d] how many entries of a table [P, L] are at most (`right`), or below, each value."""
    if len(table) == 1:
        return torch.searchsorted(table[0], values.contiguous(), right=right)
    return torch.searchsorted(table.contiguous(), values.T.contiguous(), right=right).T
