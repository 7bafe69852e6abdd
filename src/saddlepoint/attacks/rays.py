"""RayS: the nearest wrong answer along rays of signs, from decisions alone."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import ClassVar

import torch
from torch import Tensor

from saddlepoint.attacks.base import Attack
from saddlepoint.attacks.best import AttackResult, reunited
from saddlepoint.attacks.oracle import Decides
from saddlepoint.attacks.spaces import Ball, per_example
from saddlepoint.defenses import Access
from saddlepoint.rng import Keys


@dataclass(frozen=True)
class RayS(Attack[Decides]):
    """min_s g(s), g(s) = min{r : clip(center + r s) is answered wrongly}, over signs s; Chen & Gu 2020, Algorithms 1-3.

    From s = (1, ..., 1) the blocks of a partition into 1, 2, 4, ... parts are flipped in turn. A flip is checked with one query at
    the best radius so far; if that fools, the flip is kept and its radius found by bisection. (The released code keeps a flip only
    if its radius comes out smaller: up to the tolerance that is the same.) No coins are tossed.

    Each example holds a place of its own in this, and one query of every example is asked at a time. The point is the one at the
    radius found, or on the same ray at the radius of the ball when that is smaller. Costs at most `queries` decisions.
    """

    queries: int = 10_000
    tolerance: float = (
        1e-3  # in Euclidean length of a ray as in the released code: d^(-1/2) times that per pixel
    )
    stop_inside: bool = (
        True  # stop an example whose point lies in the ball; else go on to its nearest point
    )
    needs: ClassVar[Access] = "decision"
    minimum_norm: ClassVar[bool] = True
    stops_at_budget: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.queries < 1:
            raise ValueError(f"RayS needs at least one query, got queries={self.queries}.")
        if self.tolerance <= 0:
            raise ValueError(
                f"RayS searches down to a tolerance above 0, got tolerance={self.tolerance}."
            )

    @property
    def calls(self) -> int:
        return self.queries

    def scaled(self, factor: int) -> RayS:
        return replace(self, queries=factor * self.queries)

    def __call__(self, oracle: Decides, center: Tensor, space: Ball, keys: Keys) -> AttackResult:  # noqa: ARG002
        if space.p != math.inf:
            raise ValueError(
                f"RayS follows rays of signs: it supports p=inf, got p={space.p:g}. For L2 use Square."
            )
        if oracle.coupled:
            raise ValueError(
                "RayS searches each row's own boundary; rows of a coupled defense answer only together. Use Square."
            )
        rays = _Rays.of(center)
        allowed = oracle.allowance().to(center.device)
        rows = torch.arange(len(center), device=center.device)
        parts = []
        tolerance = self.tolerance / math.sqrt(max(center[:1].numel(), 1))
        for k in range(self.queries):
            playing = (allowed > k) & ~((rays.radius <= space.radius) & self.stop_inside)
            if not playing.all():
                parts.append((rows[~playing], rays[~playing].result(space)))
                rows = rows[playing]
                rays = rays[playing]
                allowed = allowed[playing]
                if not len(rows):
                    break
                oracle = oracle[playing]
            up, radius = rays.probe(space)
            rays = rays.told(oracle.decide(rays.at(up, radius, space)), up, radius, tolerance)
        return reunited([*parts, (rows, rays.result(space))])


@dataclass(frozen=True)
class _Rays:
    """Where every example is in its search."""

    center: Tensor  # [N, ...]
    up: Tensor  # [N, ...] bool: where the best ray has the sign +1, else -1
    radius: Tensor  # [N] at which it fools; infinite before anything did
    low: Tensor  # [N] at which it does not, while it is searched
    searching: Tensor  # [N] bool: else the next flip is to be checked
    level: Tensor  # [N] int64: the partition has 2^level blocks
    block: Tensor  # [N] int64: the block to be flipped; -1 is an empty one before the first, to look along the ray as it is

    @classmethod
    def of(cls, center: Tensor) -> _Rays:
        none = torch.zeros(len(center), dtype=torch.long, device=center.device)
        zero = center.new_zeros(len(center))
        return cls(
            center,
            torch.ones_like(center, dtype=torch.bool),
            zero + torch.inf,
            zero,
            none.bool(),
            none,
            none - 1,
        )

    def __getitem__(self, rows: Tensor) -> _Rays:
        return _Rays(*(getattr(self, field.name)[rows] for field in fields(self)))

    def at(self, up: Tensor, radius: Tensor, space: Ball) -> Tensor:
        radius = per_example(radius, up)
        return (self.center + torch.where(up, radius, -radius)).clamp(*space.box)

    def probe(self, space: Ball) -> tuple[Tensor, Tensor]:
        """The ray and the radius to ask about: the middle of what is searched, or a flip at the best radius."""
        size = self._size()
        d = self.up[:1].numel()
        begin = torch.where(self.searching, d, self.block * size)[
            :, None
        ]  # past the end: nothing is flipped
        place = torch.arange(d, device=self.up.device)
        flip = (place >= begin) & (place < begin + size[:, None])
        width = space.box[1] - space.box[0]
        radius = torch.where(
            self.searching, (self.low + self.radius) / 2, self.radius.clamp(max=width)
        )
        return self.up ^ flip.view_as(self.up), radius

    def told(self, hit: Tensor, up: Tensor, radius: Tensor, tolerance: float) -> _Rays:
        """The rays after the answer about the ray `up` at `radius`."""
        low = torch.where(self.searching, torch.where(hit, self.low, radius), 0.0)
        best = torch.where(hit, radius, self.radius)
        searching = (self.searching | hit) & (best - low > tolerance)
        last = (self.block + 1) * self._size() >= self.up[:1].numel()
        level = torch.where(last & ~searching, self.level + 1, self.level)
        block = torch.where(searching, self.block, torch.where(last, 0, self.block + 1))
        return _Rays(
            self.center,
            torch.where(per_example(hit, up), up, self.up),
            best,
            low,
            searching,
            level,
            block,
        )

    def result(self, space: Ball) -> AttackResult:
        """The points at the radii found or at the ball's; on the opposite ray where the box leaves this one no room at all."""
        radius = self.radius.clamp(max=space.radius)
        point = self.at(self.up, radius, space)
        stuck = (point == self.center).flatten(1).all(1)
        point = torch.where(per_example(stuck, point), self.at(~self.up, radius, space), point)
        return AttackResult(point, point)

    def _size(self) -> Tensor:
        """[N] pixels in a block: d / 2^level, rounded up."""
        parts = 2 ** self.level.clamp(max=40)
        return (self.up[:1].numel() + parts - 1) // parts
