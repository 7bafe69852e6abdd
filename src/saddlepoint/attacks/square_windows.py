"""The random windows of the Square attack, in Linf and L2."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from saddlepoint.attacks.spaces import Ball, per_example
from saddlepoint.rng import Keys

Numbers: TypeAlias = NDArray[np.int64]


class Windows(Protocol):
    """The start and the random changes of points, [N, C, H, W], in one norm."""

    def start(self, keys: Keys) -> Tensor:
        """The first points."""
        ...

    def redraw(self, y: Tensor, at: Numbers, rows: Numbers, share: float, keys: Keys) -> None:
        """Draw one window of some points at random, in place: only its pixels are copied.

        Args:
            y: points, [K, C, H, W], contiguous.
            at: which of them are changed, [M].
            rows: the images of these points, [M].
            share: share of the image that the window covers.
            keys: random keys on the host, [M].
        """
        ...

    def __getitem__(self, rows: Tensor) -> Windows: ...


def windows_of(center: Tensor, space: Ball) -> Windows:
    """The windows in the norm of the set.

    Args:
        center: clean inputs, [N, ...].
        space: the perturbation set, in Linf or L2.

    Raises:
        ValueError: Square does not support the norm.
    """
    images = center if center.ndim == 4 else center.flatten(1)[:, None, None, :]
    if space.p == math.inf:
        low, high = space.box
        lowest = (images - space.radius).clamp(min=low)
        highest = (images + space.radius).clamp(max=high)
        return _LinfWindows(torch.stack([lowest, highest]), images)
    if space.p == 2:
        return _L2Windows(images, space)
    raise ValueError(
        f"Square supports p=2 and p=inf, got p={space.p:g}. "
        "For L1 use an attack with gradients, such as APGD."
    )


@dataclass(frozen=True)
class _LinfWindows:
    """Every pixel equals the lowest or the highest value in the set."""

    bounds: Tensor  # [2, N, C, H, W] lowest and highest values in the set
    center: Tensor  # [N, C, H, W] clean inputs

    def __getitem__(self, rows: Tensor) -> _LinfWindows:
        return _LinfWindows(self.bounds[:, rows], self.center[rows])

    def start(self, keys: Keys) -> Tensor:
        _, c, _, w = self.center.shape
        low, high = self.bounds
        up = keys.signs((c, 1, w)) > 0
        stripes = torch.where(up, high, low)
        return unless_copy(stripes, self.center, torch.where(up, low, high))

    def redraw(self, y: Tensor, at: Numbers, rows: Numbers, share: float, keys: Keys) -> None:
        n, c, h, w = self.center.shape
        height, width = window_size(share, h, w)
        u = keys.uniform((2 + c,), torch.float64).numpy()  # row, column, a sign per channel
        corner = _corners(u[:, :2], height, width, h, w)  # [M]
        up = u[:, 2:] < 0.5  # [M, C]
        inside = _window(height, width, w).to(y.device)  # [pixels]
        channels = np.arange(c) * (h * w)
        first = corner[:, None] + channels  # [M, C] the first pixel of the window in an image
        here = _on(y, first + (at * (c * h * w))[:, None])[:, :, None] + inside
        there = first + (rows * (c * h * w))[:, None]  # in the lowest values
        new = self.bounds.take(_on(y, there + up * (n * c * h * w))[:, :, None] + inside)
        same = (new == y.take(here)).flatten(1).all(1).cpu().numpy()
        if same.any():
            up ^= same[:, None]
            new = self.bounds.take(_on(y, there + up * (n * c * h * w))[:, :, None] + inside)
        y.view(-1).scatter_(0, here.flatten(), new.flatten())


@dataclass(frozen=True)
class _L2Windows:
    """The perturbation moves between windows; its norm stays at the radius (Algorithm 3)."""

    center: Tensor  # [N, C, H, W] clean inputs
    space: Ball

    def __getitem__(self, rows: Tensor) -> _L2Windows:
        return _L2Windows(self.center[rows], self.space)

    def start(self, keys: Keys) -> Tensor:
        """Five by five tiles with a positive and a negative bump each and random signs."""
        n, c, h, w = self.center.shape
        height = max(h // 5, 1)
        width = max(w // 5, 1)
        down = min(h // height, 5)
        across = min(w // width, 5)
        tiles = (
            keys.signs((c, down, 1, across, 1), self.center.dtype)
            * _bumps(height, width).to(self.center)[:, None, :]
        )
        rest_h = h - down * height
        rest_w = w - across * width
        margins = (rest_w // 2, rest_w - rest_w // 2, rest_h // 2, rest_h - rest_h // 2)
        delta = functional.pad(tiles.reshape(n, c, down * height, across * width), margins)
        return unless_copy(self._at_radius(delta), self.center, self._at_radius(-delta))

    def redraw(self, y: Tensor, at: Numbers, rows: Numbers, share: float, keys: Keys) -> None:
        points = _on(y, at)
        changed = self[_on(y, rows)]._redrawn(y.index_select(0, points), share, keys)
        y.index_copy_(0, points, changed)

    def _redrawn(self, x: Tensor, share: float, keys: Keys) -> Tensor:
        n, c, h, w = x.shape
        height, width = window_size(share, h, w, odd=True)
        # Two positions, an orientation, and a sign per channel.
        drawn = keys.uniform((5 + c,), torch.float64)
        inside = _window(height, width, w).to(x.device)  # [pixels]
        here, there = (
            (_on(x, _corners(drawn[:, at : at + 2].numpy(), height, width, h, w))[:, None] + inside)
            .unsqueeze(1)
            .expand(n, c, -1)
            for at in (0, 2)
        )
        u = drawn.to(x.device)
        sign = torch.where(u[:, 5:, None] < 0.5, -1.0, 1.0).to(x)
        bumps = _bumps(height, width).to(x)
        turned = (u[:, 4, None] < 0.5) & (height == width)
        bumps = torch.where(turned, bumps.T.flatten(), bumps.flatten())[:, None]  # [N, 1, pixels]

        delta = (x - self.center).flatten(2)
        old = delta.gather(2, here)
        emptied = delta.scatter(2, there, 0.0)
        # ||delta||^2 on both windows together.
        both = delta.gather(2, there).square().sum(2) + emptied.gather(2, here).square().sum(2)
        unused = (self.space.radius**2 - delta.square().sum((1, 2))).clamp(min=0)
        available = (both + unused[:, None] / c).sqrt()[:, :, None]
        new = _unit(sign * bumps + _unit(old, 2), 2) * available
        return self._at_radius(emptied.scatter(2, here, new).view_as(x))

    def _at_radius(self, delta: Tensor) -> Tensor:
        length = per_example(delta.flatten(1).norm(dim=1).clamp(min=1e-30), delta)
        return (self.center + self.space.radius * delta / length).clamp(*self.space.box)


def window_size(share: float, height: int, width: int, *, odd: bool = False) -> tuple[int, int]:
    """The height and width of a window.

    It is a square, or a rectangle of the image's full shorter side if the square does not fit.

    Args:
        share: share of the image that the window covers.
        height: height of the image in pixels.
        width: width of the image in pixels.
        odd: make the side of the square odd and at least 3; default False.
    """
    side = max(round(math.sqrt(share * height * width)), 1)
    side = max(side, 3) | 1 if odd else side
    short = min(height, width)
    long = max(height, width)
    if side <= short:
        return side, side
    length = min(max(round(share * long), 3 if odd else 1), long)
    return (short, length) if height <= width else (length, short)


def _corners(u: NDArray[np.float64], height: int, width: int, h: int, w: int) -> Numbers:
    """Flat positions of the first pixels of randomly placed windows, [N].

    Args:
        u: uniform numbers that choose the corner, [N, 2].
        height: height of the window.
        width: width of the window.
        h: height of the image.
        w: width of the image.
    """
    corner = (u * (h - height + 1, w - width + 1)).astype(np.int64)
    flat: Numbers = corner[:, 0] * w + corner[:, 1]
    return flat


@lru_cache(maxsize=64)
def _window(height: int, width: int, w: int) -> Tensor:
    """Flat positions of the pixels of a window in the corner of an image of width w, [pixels]."""
    return (torch.arange(height)[:, None] * w + torch.arange(width)).flatten()


def _on(x: Tensor, numbers: Numbers) -> Tensor:
    """Numbers of the host on the device of x."""
    return torch.from_numpy(numbers).to(x.device)


@lru_cache(maxsize=64)
def _bumps(height: int, width: int) -> Tensor:
    """[height, width] of unit norm: a positive and a negative bump along the longer side.

    It is eta of the paper.
    """
    if width > height:
        return _bumps(width, height).T
    if height == 1:
        return torch.ones(1, 1, dtype=torch.float64)
    return _unit(
        torch.cat([_bump(height // 2, width), -_bump(height - height // 2, width)]), (0, 1)
    )


def _bump(height: int, width: int) -> Tensor:
    """sum_{j=dist}^{n} 1 / (j + 1)^2 at distance dist from the middle, scaled to unit norm.

    Distances are in the maximum norm, and n is the largest one.
    """
    rows, columns = ((torch.arange(size) - size // 2).abs() for size in (height, width))
    distance = torch.maximum(rows[:, None], columns)
    terms = 1 / torch.arange(1, int(distance.amax()) + 2, dtype=torch.float64).square()
    return _unit(terms.flip(0).cumsum(0).flip(0)[distance], (0, 1))


def _unit(t: Tensor, dim: int | tuple[int, ...]) -> Tensor:
    """t divided by its Euclidean norm over `dim`."""
    length: Tensor = torch.linalg.vector_norm(t, dim=dim, keepdim=True)
    return t / length.clamp(min=1e-12)


def unless_copy(x: Tensor, center: Tensor, instead: Tensor) -> Tensor:
    """x, with rows equal to the center replaced by those of `instead`."""
    return torch.where(per_example((x == center).flatten(1).all(1), x), instead, x)
