"""Euclidean projections onto the intersection of a ball and a box."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

_MOST_STEPS = 64  # few are needed
# Where no value is read to see whether all rows have ended. A row of `project_l2` that needs more
# stays slightly inside of the ball.
_FIXED_STEPS = 16
_SHORT_STEPS = 3  # of `project_l2`, which cost a third of the others
_SHORT = 1e-15  # squares of shorter lengths lose precision in float32


def reading_is_free(device: torch.device) -> bool:
    """Whether the host can read a value of a tensor without waiting for the device."""
    return device.type == "cpu"


def largest(v: Tensor) -> Tensor:
    """The largest absolute value of each row of v, [N, ...] -> [N], without a copy of v."""
    flat = v.flatten(1)
    return torch.maximum(flat.amax(1), -flat.amin(1))  # several times faster than `vector_norm`


def unit_length(v: Tensor) -> Tensor:
    """The rows of v, [N, ...], divided by their Euclidean length; rows of zeros stay zero."""
    flat = v.flatten(1)
    length: Tensor = torch.linalg.vector_norm(flat, dim=1)
    usual = (length > _SHORT) & (length < 1 / _SHORT)
    if reading_is_free(v.device) and not v.requires_grad:
        unit = flat / length.clamp(min=_SHORT)[:, None]
        rows = (~usual).nonzero()[:, 0]
        if len(rows):
            unit = unit.index_copy_(0, rows, _unit_rows(flat[rows], usual[rows]))
        return unit.view_as(v)
    return _unit_rows(flat, usual).view_as(v)


def _unit_rows(v: Tensor, usual: Tensor) -> Tensor:
    """As `unit_length` for [N, d]; rows that are not `usual`, [N] bool, are scaled first."""
    # Float32 squares below 1e-38 are zero, and saturated losses have such small gradients.
    scale = largest(v).clamp(min=torch.finfo(v.dtype).tiny)
    scaled = v / torch.where(usual, 1.0, scale)[:, None]
    length: Tensor = torch.linalg.vector_norm(scaled, dim=1)
    return scaled / length.clamp(min=_SHORT)[:, None]


def largest_entries(v: Tensor, count: Tensor) -> Tensor:
    """[N, d] bool: the `count`, [N], largest entries of each row of v, [N, d], at least 1 each.

    Of equal entries, as many are taken as are wanted.
    """
    d = v.shape[1]
    if not reading_is_free(v.device):
        return _ranked(v, count)
    if bool((count == 1).all()):
        threshold = v.amax(1, keepdim=True)
    else:  # numpy's sort is ten times faster than torch's on the CPU
        ordered = torch.from_numpy(np.sort(v.detach().numpy(), axis=1))
        threshold = ordered.gather(1, d - count.long()[:, None])
    found = v >= threshold
    tied = (found.sum(1) > count).nonzero()[:, 0]
    return found.index_copy(0, tied, _ranked(v[tied], count[tied])) if len(tied) else found


def _ranked(v: Tensor, count: Tensor) -> Tensor:
    at = v.argsort(dim=1, descending=True, stable=True)
    wanted = torch.arange(v.shape[1], device=v.device) < count[:, None]
    return torch.zeros_like(v, dtype=torch.bool).scatter(1, at, wanted)


def project_l2(u: Tensor, low: Tensor, high: Tensor, radius: Tensor) -> Tensor:
    """argmin ||d - u||_2 with ||d||_2 <= radius and low <= d <= high.

    The solution is d(t) = clip(t u, low, high) with the largest t in (0, 1] for which
    ||d(t)|| <= radius. If the clipped coordinates of d(t) were those of the solution, the solution
    would be at

        t' = t sqrt(radius^2 - ||d_clipped||^2) / ||d_free||.

    From t = min(1, radius / ||u||), which is at most the solution, t only increases and coordinates
    only become clipped, so the iteration ends; rows that have ended do not change. The first steps
    are cheaper and shorter, t' = t radius / ||d||, which is enough where few coordinates are
    clipped. Where reading a value would stall the device, a fixed number of steps is made.

    Args:
        u: perturbations, [N, d].
        low: lower bounds, [N, d], at most 0.
        high: upper bounds, [N, d], at least 0.
        radius: [N].
    """
    close = 8 * torch.finfo(u.dtype).eps
    bound = radius**2
    t = (radius / u.norm(dim=1).clamp(min=1e-30)).clamp(max=1)
    scaled = u * t[:, None]
    d = torch.clamp(scaled, low, high)
    free_reads = reading_is_free(u.device)
    # New memory for every operation takes longer than the operation. Gradients need it.
    recorded = d.requires_grad
    rows, part = (None, None) if recorded else (scaled, torch.empty_like(d))
    short = 0 if recorded else _SHORT_STEPS
    inside = None if recorded else d
    for step in range(_MOST_STEPS if free_reads else _FIXED_STEPS):
        total = _squared(d)
        # At the radius, or inside with t = 1.
        done = ((total - bound).abs() <= close * bound) | ((t == 1) & (total <= bound))
        if free_reads and bool(done.all()):
            break
        if step < short:
            rest = bound
            length = total
        else:
            # Float arithmetic with signs; comparisons and `where` are several times slower.
            outside = torch.sub(scaled, d, out=rows).sign_()
            clipped = torch.mul(outside, d, out=part)
            rest = (bound - _squared(clipped)).clamp(min=0)
            length = _squared(torch.addcmul(d, outside, clipped, value=-1, out=part))
        wanted = (t * (rest / length.clamp(min=1e-30)).sqrt()).clamp(max=1)
        t_new = torch.maximum(wanted, t)
        changed = ~done & ((t_new - t).abs() > close / 2 * t)
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
    # As in `project_l2`.
    d = torch.empty_like(size)
    kept = None if u.requires_grad else d
    part, signs = (None, None) if u.requires_grad else (torch.empty_like(d), torch.empty_like(d))
    for _ in range(_MOST_STEPS):
        d = _shrunk(size, room, s, kept)
        excess = d.sum(1, dtype=torch.float64) - radius
        inner = torch.sign(torch.sub(room, d, out=part), out=part)
        free = torch.mul(torch.sign(d, out=signs), inner, out=part).sum(1).double()
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


def _shrunk(size: Tensor, room: Tensor, s: Tensor, out: Tensor | None) -> Tensor:
    """min(max(size - s, 0), room), [N, d]; in the memory of `out`, if there is one."""
    positive = torch.clamp(torch.sub(size, s[:, None].to(size), out=out), min=0, out=out)
    return torch.minimum(positive, room, out=out)
