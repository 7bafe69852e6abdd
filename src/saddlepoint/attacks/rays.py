"""RayS: the nearest misclassified point along rays of signs, from decisions alone."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import ClassVar

import torch
from torch import Tensor

from saddlepoint.attacks.base import Attack
from saddlepoint.attacks.best import AttackResult, merge_results
from saddlepoint.attacks.oracle import Decides
from saddlepoint.attacks.spaces import Ball, per_example
from saddlepoint.defenses import Access
from saddlepoint.rng import Keys


@dataclass(frozen=True)
class RayS(Attack[Decides]):
    """RayS, Chen & Gu 2020, Algorithms 1-3: min_s g(s) over sign vectors s, where

        g(s) = min{r : clip(center + r s) is misclassified}.

    From s = (1, ..., 1) the blocks of a partition into 1, 2, 4, ... parts are flipped in turn. A
    flip is checked with one query at the best radius so far. If the point is misclassified, the
    flip is kept and its radius is found by bisection. (The released code keeps a flip only if its
    radius is smaller, which is the same up to the tolerance.) It uses no random numbers.

    Every example has its own position in this search; each round makes one query per example. The
    result is the point at the radius found, or on the same ray at the radius of the ball if that is
    smaller. It costs at most `queries` decisions. Rows must be independent, and p must be infinity.

    Args:
        queries: most queries per example, at least 1; default 10000.
        tolerance: precision of the bisection, in Euclidean length of the ray as in the released
            code, that is d^(-1/2) times this per pixel; default 1e-3.
        stop_inside: stop an example when its point lies in the ball (default); False: go on to the
            nearest point.
    """

    queries: int = 10_000
    tolerance: float = 1e-3
    stop_inside: bool = True
    needs: ClassVar[Access] = "decision"
    minimum_norm: ClassVar[bool] = True
    stops_at_budget: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.queries < 1:
            raise ValueError(f"RayS needs at least one query, got queries={self.queries}.")
        if self.tolerance <= 0:
            raise ValueError(f"RayS needs a tolerance above 0, got tolerance={self.tolerance}.")

    @property
    def calls(self) -> int:
        return self.queries

    def scaled(self, factor: int) -> RayS:
        return replace(self, queries=factor * self.queries)

    def __call__(
        self,
        oracle: Decides,
        center: Tensor,
        space: Ball,
        keys: Keys,  # noqa: ARG002
    ) -> AttackResult:
        if space.p != math.inf:
            raise ValueError(f"RayS supports p=inf, got p={space.p:g}. For L2 use Square.")
        if oracle.coupled:
            raise ValueError(
                "RayS needs independent rows, but rows of a coupled defense can only be evaluated "
                "together. Use Square."
            )
        rays = _Rays.of(center)
        allowed = oracle.allowance().to(center.device)
        rows = torch.arange(len(center), device=center.device)
        parts = []
        tolerance = self.tolerance / math.sqrt(max(center[:1].numel(), 1))
        for k in range(self.queries):
            active = (allowed > k) & ~((rays.radius <= space.radius) & self.stop_inside)
            if not active.all():
                parts.append((rows[~active], rays[~active].result(space)))
                rows = rows[active]
                rays = rays[active]
                allowed = allowed[active]
                if not len(rows):
                    break
                oracle = oracle[active]
            up, radius = rays.next_query(space)
            success = oracle.decide(rays.at(up, radius, space))
            rays = rays.updated(success, up, radius, tolerance)
        return merge_results([*parts, (rows, rays.result(space))])


@dataclass(frozen=True)
class _Rays:
    """The position of every example in its search."""

    center: Tensor  # [N, ...] clean inputs
    up: Tensor  # [N, ...] bool: signs of the best ray, True for +1
    radius: Tensor  # [N] radius at which it is misclassified; infinite before the first success
    low: Tensor  # [N] lower end of the bisection: radius at which it is not misclassified
    searching: Tensor  # [N] bool: bisect next; else check the next flip
    level: Tensor  # [N] int64, the partition has 2^level blocks
    # [N] int64, the block to flip. -1 before the first block: nothing is flipped, to query the
    # starting ray itself.
    block: Tensor

    @classmethod
    def of(cls, center: Tensor) -> _Rays:
        """The start of the search."""
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
        """The points at `radius`, [N], on the rays with the signs `up`, [N, ...] bool."""
        radius = per_example(radius, up)
        return (self.center + torch.where(up, radius, -radius)).clamp(*space.box)

    def next_query(self, space: Ball) -> tuple[Tensor, Tensor]:
        """The signs, [N, ...] bool, and the radius, [N], of the next query.

        They are the middle of the bisection interval, or a flip at the best radius.
        """
        size = self._block_size()
        d = self.up[:1].numel()
        # A first index past the end flips nothing.
        first = torch.where(self.searching, d, self.block * size)[:, None]
        index = torch.arange(d, device=self.up.device)
        flip = (index >= first) & (index < first + size[:, None])
        width = space.box[1] - space.box[0]
        radius = torch.where(
            self.searching, (self.low + self.radius) / 2, self.radius.clamp(max=width)
        )
        return self.up ^ flip.view_as(self.up), radius

    def updated(self, success: Tensor, up: Tensor, radius: Tensor, tolerance: float) -> _Rays:
        """The search after the query with the signs `up` at `radius`; `success` is [N] bool."""
        low = torch.where(self.searching, torch.where(success, self.low, radius), 0.0)
        best = torch.where(success, radius, self.radius)
        searching = (self.searching | success) & (best - low > tolerance)
        last = (self.block + 1) * self._block_size() >= self.up[:1].numel()
        level = torch.where(last & ~searching, self.level + 1, self.level)
        block = torch.where(searching, self.block, torch.where(last, 0, self.block + 1))
        return _Rays(
            self.center,
            torch.where(per_example(success, up), up, self.up),
            best,
            low,
            searching,
            level,
            block,
        )

    def result(self, space: Ball) -> AttackResult:
        """The points at the radii found, or at the radius of the ball if that is smaller.

        If the box does not allow a row to move along its ray, the opposite ray is used.
        """
        radius = self.radius.clamp(max=space.radius)
        point = self.at(self.up, radius, space)
        stuck = (point == self.center).flatten(1).all(1)
        point = torch.where(per_example(stuck, point), self.at(~self.up, radius, space), point)
        return AttackResult(point, point)

    def _block_size(self) -> Tensor:
        """[N] pixels per block: d / 2^level, rounded up."""
        parts = 2 ** self.level.clamp(max=40)
        return (self.up[:1].numel() + parts - 1) // parts
