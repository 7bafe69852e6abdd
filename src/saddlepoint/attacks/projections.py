"""Euclidean projections onto the intersection of a ball and a box."""

from __future__ import annotations

import torch
from torch import Tensor

_MOST_STEPS = 64  # few are needed
# Where no value is read to see whether all rows have ended. A row of `project_l2` that needs more
# stays slightly inside of the ball.
_FIXED_STEPS = 16


def reading_is_free(device: torch.device) -> bool:
    """Whether the host can read a value of a tensor without waiting for the device."""
    return device.type == "cpu"


def largest(v: Tensor) -> Tensor:
    """The largest absolute value of each row of v, [N, ...] -> [N], without a copy of v."""
    flat = v.flatten(1)
    return torch.maximum(flat.amax(1), -flat.amin(1))  # several times faster than `vector_norm`


def project_l2(u: Tensor, low: Tensor, high: Tensor, radius: Tensor) -> Tensor:
    """argmin ||d - u||_2 with ||d||_2 <= radius and low <= d <= high.

    The solution is d(t) = clip(t u, low, high) with the largest t in (0, 1] for which
    ||d(t)|| <= radius. If the clipped coordinates of d(t) were those of the solution, the solution
    would be at

        t' = t sqrt(radius^2 - ||d_clipped||^2) / ||d_free||.

    From t = 1 the first t' is at most the solution. From there t only increases and coordinates
    only become clipped, so the iteration ends; rows that have ended do not change. Where reading a
    value would stall the device, a fixed number of steps is made.

    Args:
        u: perturbations, [N, d].
        low: lower bounds, [N, d], at most 0.
        high: upper bounds, [N, d], at least 0.
        radius: [N].
    """
    eps = torch.finfo(u.dtype).eps
    lowest = (radius / u.norm(dim=1).clamp(min=1e-30)).clamp(max=1)
    t = torch.ones_like(lowest)
    d = torch.clamp(u, low, high)
    scaled = u
    free_reads = reading_is_free(u.device)
    # New memory for every operation takes longer than the operation. Gradients need it.
    recorded = d.requires_grad
    rows, part = (None, None) if recorded else (torch.empty_like(d), torch.empty_like(d))
    inside = None if recorded else d
    for step in range(_MOST_STEPS if free_reads else _FIXED_STEPS):
        # Float arithmetic with signs; comparisons and `where` are several times slower.
        outside = torch.sub(scaled, d, out=rows).sign_()
        clipped = torch.mul(outside, d, out=part)
        rest = (radius**2 - _squared(clipped)).clamp(min=0)
        free = torch.sub(torch.mul(clipped, outside, out=part), d, out=part)  # with the sign of -d
        wanted = (t * (rest / _squared(free).clamp(min=1e-30)).sqrt()).clamp(max=1)
        t_new = torch.maximum(wanted, lowest if step == 0 else t)
        changed = (t_new - t).abs() > 4 * eps * t
        if free_reads and not changed.any():
            break
        t = torch.where(changed, t_new, t)
        scaled = torch.mul(u, t[:, None], out=rows)
        d = torch.clamp(scaled, low, high, out=inside)
    return d


def _squared(v: Tensor) -> Tensor:
    """[N] squared Euclidean norms of the rows of v, [N, d]."""
    length: Tensor = torch.linalg.vector_norm(v, dim=1)
    return length**2


def project_l1(u: Tensor, low: Tensor, high: Tensor, radius: Tensor) -> Tensor:
    """argmin ||d - u||_2 with ||d||_1 <= radius and low <= d <= high.

    The solution is |d_i| = min(max(|u_i| - s, 0), b_i), where b_i is the distance to the box on the
    side of u_i, and s >= 0 is the smallest value for which the sum is at most radius (Croce & Hein
    2021, Sec. 3.1). The sum decreases with s and is piecewise linear, so Newton's method finds s
    exactly once it knows which coordinates are free; where a step leaves the bracket of s, the
    bracket is halved. Sums over thousands of coordinates use double precision. Arguments as
    `project_l2`.
    """
    size = u.abs()
    room = torch.where(u > 0, high, -low)
    radius = radius.double()
    below = torch.zeros_like(radius)  # the sum exceeds the radius at `below`, or s = 0
    above = size.amax(1).double()  # the sum is at most the radius at `above`
    s = below
    for _ in range(_MOST_STEPS):
        d = _shrunk(size, room, s)
        excess = d.sum(1, dtype=torch.float64) - radius
        free = (d.sign() * (room - d).sign()).sum(1).double()
        below = torch.where(excess > 0, s, below)
        above = torch.where(excess > 0, above, s)
        newton = s + excess / free.clamp(min=1)
        inside = (newton > below) & (newton < above) & (free > 0)
        s_new = torch.where(inside, newton, (below + above) / 2)
        # Done at a sum that equals the radius up to rounding, and at s = 0 if it is feasible.
        exact = excess.abs() <= 8 * torch.finfo(u.dtype).eps * radius
        done = exact | ((s == 0) & (excess <= 0))
        if reading_is_free(u.device) and bool(done.all()):
            break
        s = torch.where(done, s, s_new)
    # Rounding may leave the sum above the radius by a few units in the last place.
    total = d.sum(1, dtype=torch.float64)
    fit = (radius / total.clamp(min=1e-30)).clamp(max=1).to(u)
    return u.sign() * d * fit[:, None]


def _shrunk(size: Tensor, room: Tensor, s: Tensor) -> Tensor:
    """min(max(size - s, 0), room), [N, d]."""
    return torch.minimum((size - s[:, None].to(size)).clamp(min=0), room)
