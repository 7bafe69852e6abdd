"""Square attack: random search with square windows."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from saddlepoint.attacks.base import Attack
from saddlepoint.attacks.best import AttackResult, BestSoFar, reunited
from saddlepoint.attacks.oracle import Scores
from saddlepoint.attacks.spaces import Ball, per_example
from saddlepoint.defenses import Access
from saddlepoint.rng import Keys

_HALVINGS = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)  # of 10 000 iterations


@dataclass(frozen=True)
class Square(Attack[Scores]):
    """x <- y if value(y) > value(x), where y is x with one square window drawn anew; Andriushchenko et al. 2020, Algorithms 1-3.

    Linf: the window is set to center +- radius, one sign per channel; the start is vertical stripes. L2: the window takes over the
    budget of another one and of what is unused. The share p of the image that a window covers is halved after 10, 50, 200, 500,
    1000, 2000, 4000, 6000 and 8000 iterations, which with `rescale` are counted in ten-thousandths of `queries`. Inputs other
    than images [N, C, H, W] are strips of one pixel's height.

    Every example has a window of its own (the code in AutoAttack draws one for the batch), and stops asking once fooled where rows
    are independent. Rows of a coupled defense follow their own values, and the best whole batch is kept. A window that would change
    nothing has its signs turned. Costs at most `queries` readings.
    """

    queries: int = 5000
    share: float = 0.8  # of the image, covered by the first windows: p_init
    rescale: bool = False  # AutoAttack: 5000 queries, not rescaled
    needs: ClassVar[Access] = "score"
    stops_at_budget: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.queries < 1:
            raise ValueError(f"Square needs at least one query, got queries={self.queries}.")
        if not 0 < self.share <= 1:
            raise ValueError(
                f"Square's windows cover a share of the image in (0, 1], got share={self.share}."
            )

    @property
    def calls(self) -> int:
        return self.queries

    def scaled(self, factor: int) -> Square:
        return replace(self, queries=factor * self.queries)

    def __call__(self, oracle: Scores, center: Tensor, space: Ball, keys: Keys) -> AttackResult:
        windows = _windows(center, space)
        start = windows.start(keys)
        x = start
        y = start
        value = center.new_full((len(center),), -torch.inf)
        best = BestSoFar(start, oracle.coupled)
        fooled = torch.zeros_like(value, dtype=torch.bool)
        allowed = _allowed(oracle).to(center.device)
        rows = torch.arange(len(center), device=center.device)
        parts = []
        for k in range(self.queries):
            done = fooled | (allowed <= k)
            if done.any():
                parts.append((rows[done], _found(fooled, y, x)[done]))
                rows, x, y, value, fooled, allowed = (
                    t[~done] for t in (rows, x, y, value, fooled, allowed)
                )
                if not len(rows):
                    break
                oracle = oracle[~done]
                windows = windows[~done]
                keys = keys[~done]
            y = windows.redrawn(x, self.share_at(k - 1), keys.fold_in(k)) if k else x
            evaluation = oracle.score(y.view(len(y), *center.shape[1:]))
            rose = evaluation.value > value
            x = torch.where(per_example(rose, x), y, x)
            value = torch.where(rose, evaluation.value, value)
            if oracle.coupled:
                best.update(y, evaluation)
            else:
                fooled = evaluation.success
        found = best.result if oracle.coupled else reunited([*parts, (rows, _found(fooled, y, x))])
        point, max_loss_point = (
            _unless_copy(p, center.reshape(p.shape), start).view_as(center)
            for p in (found.point, found.max_loss_point)
        )
        return AttackResult(point, max_loss_point)

    def share_at(self, iteration: int) -> float:
        """p of the given iteration, counted from 0; the start is none."""
        at = int(iteration / self.queries * 10_000) if self.rescale else iteration
        return float(self.share / 2 ** sum(at > halving for halving in _HALVINGS))


class _Windows(Protocol):
    """How points start and change in one norm; points are [N, C, H, W]."""

    def start(self, keys: Keys) -> Tensor: ...
    def redrawn(self, x: Tensor, share: float, keys: Keys) -> Tensor: ...
    def __getitem__(self, rows: Tensor) -> _Windows: ...


def _windows(center: Tensor, space: Ball) -> _Windows:
    images = center if center.ndim == 4 else center.flatten(1)[:, None, None, :]
    if space.p == math.inf:
        low, high = space.box
        return _LinfWindows(
            (images - space.radius).clamp(min=low), (images + space.radius).clamp(max=high), images
        )
    if space.p == 2:
        return _L2Windows(images, space)
    raise ValueError(
        f"Square supports p=2 and p=inf, got p={space.p:g}. For L1 use an attack with gradients, such as APGD."
    )


@dataclass(frozen=True)
class _LinfWindows:
    """Every pixel stands at `low` or at `high`."""

    low: Tensor  # [N, C, H, W]
    high: Tensor
    center: Tensor

    def __getitem__(self, rows: Tensor) -> _LinfWindows:
        return _LinfWindows(self.low[rows], self.high[rows], self.center[rows])

    def start(self, keys: Keys) -> Tensor:
        _, c, _, w = self.low.shape
        up = keys.signs((c, 1, w)) > 0
        stripes = torch.where(up, self.high, self.low)
        return _unless_copy(stripes, self.center, torch.where(up, self.low, self.high))

    def redrawn(self, x: Tensor, share: float, keys: Keys) -> Tensor:
        n, c, h, w = x.shape
        height, width = window_size(share, h, w)
        u = keys.uniform((2 + c,), torch.float64)  # a row, a column, and a sign per channel
        at = _pixels(u[:, :2], height, width, h, w).expand(n, c, -1)
        up = u[:, 2:, None] < 0.5
        low, high, old = (t.flatten(2).gather(2, at) for t in (self.low, self.high, x))
        new = torch.where(up, high, low)
        idle = (new == old).flatten(1).all(1)[:, None, None]
        return x.flatten(2).scatter(2, at, torch.where(up ^ idle, high, low)).view_as(x)


@dataclass(frozen=True)
class _L2Windows:
    """Mass moves from window to window, the total stays at the radius (Algorithm 3)."""

    center: Tensor  # [N, C, H, W]
    space: Ball

    def __getitem__(self, rows: Tensor) -> _L2Windows:
        return _L2Windows(self.center[rows], self.space)

    def start(self, keys: Keys) -> Tensor:
        """Five by five tiles of one bump and one hollow each, with random signs."""
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
        return _unless_copy(self._at_radius(delta), self.center, self._at_radius(-delta))

    def redrawn(self, x: Tensor, share: float, keys: Keys) -> Tensor:
        n, c, h, w = x.shape
        height, width = window_size(share, h, w, odd=True)
        u = keys.uniform((5 + c,), torch.float64)  # two places, a direction, and a sign per channel
        here, there = (
            _pixels(u[:, at : at + 2], height, width, h, w).expand(n, c, -1) for at in (0, 2)
        )
        sign = torch.where(u[:, 5:, None] < 0.5, -1.0, 1.0).to(x)
        bumps = _bumps(height, width).to(x)
        turned = (u[:, 4, None] < 0.5) & (height == width)
        bumps = torch.where(turned, bumps.T.flatten(), bumps.flatten())[:, None]  # [N, 1, pixels]

        delta = (x - self.center).flatten(2)
        old = delta.gather(2, here)
        emptied = delta.scatter(2, there, 0.0)
        both = delta.gather(2, there).square().sum(2) + emptied.gather(2, here).square().sum(
            2
        )  # ||delta||^2 on both windows
        unused = (self.space.radius**2 - delta.square().sum((1, 2))).clamp(min=0)
        available = (both + unused[:, None] / c).sqrt()[:, :, None]
        new = _unit(sign * bumps + _unit(old, 2), 2) * available
        return self._at_radius(emptied.scatter(2, here, new).view_as(x))

    def _at_radius(self, delta: Tensor) -> Tensor:
        length = per_example(delta.flatten(1).norm(dim=1).clamp(min=1e-30), delta)
        return (self.center + self.space.radius * delta / length).clamp(*self.space.box)


def window_size(share: float, height: int, width: int, *, odd: bool = False) -> tuple[int, int]:
    """A square of that share of the image; where the image is too flat for it, as long a rectangle. `odd`: and at least 3."""
    side = max(round(math.sqrt(share * height * width)), 1)
    side = max(side, 3) | 1 if odd else side
    short = min(height, width)
    long = max(height, width)
    if side <= short:
        return side, side
    length = min(max(round(share * long), 3 if odd else 1), long)
    return (short, length) if height <= width else (length, short)


def _pixels(u: Tensor, height: int, width: int, h: int, w: int) -> Tensor:
    """[N, 1, height * width] positions in a flat image of the windows that uniform numbers u [N, 2] choose."""
    corner = (u * u.new_tensor([h - height + 1, w - width + 1])).long()
    inside = torch.arange(height, device=u.device)[:, None] * w + torch.arange(
        width, device=u.device
    )
    return (corner[:, 0] * w + corner[:, 1])[:, None, None] + inside.flatten()


@lru_cache(maxsize=64)
def _bumps(height: int, width: int) -> Tensor:
    """[height, width] of unit length: a bump and a hollow, one after the other along the longer side: eta of the paper."""
    if width > height:
        return _bumps(width, height).T
    if height == 1:
        return torch.ones(1, 1, dtype=torch.float64)
    return _unit(
        torch.cat([_bump(height // 2, width), -_bump(height - height // 2, width)]), (0, 1)
    )


def _bump(height: int, width: int) -> Tensor:
    """sum_{j=dist}^{n} 1 / (j + 1)^2 at distance dist (in the maximum norm) from the middle, n the largest; of unit length."""
    rows, columns = ((torch.arange(size) - size // 2).abs() for size in (height, width))
    distance = torch.maximum(rows[:, None], columns)
    terms = 1 / torch.arange(1, int(distance.amax()) + 2, dtype=torch.float64).square()
    return _unit(terms.flip(0).cumsum(0).flip(0)[distance], (0, 1))


def _unit(t: Tensor, dim: int | tuple[int, ...]) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(t, dim=dim, keepdim=True)
    return t / length.clamp(min=1e-12)


def _unless_copy(x: Tensor, center: Tensor, instead: Tensor) -> Tensor:
    """x, but `instead` on rows that are the center itself."""
    return torch.where(per_example((x == center).flatten(1).all(1), x), instead, x)


def _found(fooled: Tensor, y: Tensor, x: Tensor) -> AttackResult:
    """The point just asked about where it fooled, else the highest so far."""
    return AttackResult(torch.where(per_example(fooled, x), y, x), x)


def _allowed(oracle: Scores) -> Tensor:
    """[N] readings that each row may ask for; coupled rows ask together, as long as all of them can."""
    allowed = oracle.allowance()
    return torch.full_like(allowed, oracle.left()) if oracle.coupled else allowed
