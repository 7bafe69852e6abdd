"""Euclidean projections onto the intersection of a ball and a box."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

_MOST_STEPS = 64  # few are needed
# Where no value is read to see whether all rows have ended. A row of `project_l2` that needs more
# stays slightly inside of the ball.
_FIXED_STEPS = 16
_CLOSE = 8  # units of rounding by which a squared length may differ from the squared radius
_TINIEST = 1e-45  # the smallest positive number of float32
_SHORT = 1e-15  # squares of shorter lengths lose precision in float32


def reading_is_free(device: torch.device) -> bool:
    """Whether the host can read a value of a tensor without waiting for the device."""
    return device.type == "cpu"


def copy_rows(kept: Tensor, rows: Tensor, part: Tensor) -> Tensor:
    """`kept`, [N, ...], which is changed, with the rows `rows`, [M], of `part`, [M, ...]."""
    if part.dtype == torch.bfloat16:  # unknown to numpy
        return kept.index_copy_(0, rows, part)
    kept.numpy()[rows.numpy()] = part.numpy()  # several times faster than `index_copy_`
    return kept


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
    """[N, d] of 0 and 1: the `count`, [N], largest positive entries of each row of v, [N, d].

    Of equal entries, as many are taken as are wanted. There are fewer where fewer are positive.
    """
    if not reading_is_free(v.device):
        return (_ranked(v, count) & (v > 0)).to(v)
    if bool((count == 1).all()):
        # The entries that equal the largest one.
        found = torch.sub(v, v.amax(1, keepdim=True).clamp(min=_TINIEST)).sign_().add_(1)
        tied = found.sum(1) > count
    else:
        # Float arithmetic with signs; comparisons are several times slower.
        below = _entry_after(v, count).clamp(min=0)
        found = torch.sub(v, below[:, None]).clamp_(min=0).sign_()
        tied = (found.sum(1) < count) & (below > 0)
    rows = tied.nonzero()[:, 0]
    if not len(rows):
        return found
    few = v.index_select(0, rows)
    return copy_rows(found, rows, (_ranked(few, count[rows]) & (few > 0)).to(v))


def _entry_after(v: Tensor, count: Tensor) -> Tensor:
    """[N] the largest entry of each row of v, [N, d], after the `count`, [N], largest; -inf: none.

    Numpy's partition and sort are ten times faster than torch's on the CPU.
    """
    d = v.shape[1]
    most = min(int(count.amax()), d - 1)
    first = d - 1 - most
    ordered = np.partition(v.detach().numpy(), first, axis=1)[:, first:]
    if int(count.amin()) < most:
        ordered.sort(axis=1)
    at = (most - count.long()).clamp(min=0)
    found = torch.from_numpy(ordered).gather(1, at[:, None])[:, 0]
    return torch.where(count >= d, -torch.inf, found)


def _ranked(v: Tensor, count: Tensor) -> Tensor:
    at = v.argsort(dim=1, descending=True, stable=True)
    wanted = torch.arange(v.shape[1], device=v.device) < count[:, None]
    return torch.zeros_like(v, dtype=torch.bool).scatter(1, at, wanted)


def project_l2(u: Tensor, low: Tensor, high: Tensor, radius: Tensor) -> Tensor:
    """argmin ||d - u||_2 with ||d||_2 <= radius and low <= d <= high.

    The solution is d(t) = clip(t u, low, high) with the largest t in (0, 1] for which
    ||d(t)|| <= radius. Rows inside of the ball have t = 1. The others start at
    t = radius / ||d(1)||, which is exact where the same coordinates are clipped at t and at 1: for
    pixels at the edge of the box, which cannot move at all. Rows that are not at the radius then
    continue as in `_scaled_to_radius`.

    Args:
        u: perturbations, [N, d].
        low: lower bounds, [N, d], at most 0.
        high: upper bounds, [N, d], at least 0.
        radius: [N].
    """
    d = torch.clamp(u, low, high)
    total = _squared(d)
    bound = radius**2
    inside = total <= bound
    free_reads = reading_is_free(u.device)
    if free_reads and bool(inside.all()):
        return d
    # In the same memory, unless gradients need both.
    own = None if u.requires_grad else d
    t = torch.where(inside, 1.0, radius / total.clamp(min=1e-30).sqrt())
    d = torch.clamp(u * t[:, None], low, high, out=own)
    done = inside | _at_radius(_squared(d), bound)
    if not free_reads:
        return torch.where(done[:, None], d, _scaled_to_radius(u, low, high, radius, t))
    rows = (~done).nonzero()[:, 0]
    if not len(rows):
        return d
    part = _scaled_to_radius(*(v.index_select(0, rows) for v in (u, low, high, radius, t)))
    return d.index_copy(0, rows, part) if u.requires_grad else copy_rows(d, rows, part)


def _scaled_to_radius(u: Tensor, low: Tensor, high: Tensor, radius: Tensor, t: Tensor) -> Tensor:
    """d(t) of `project_l2` for rows that are outside of the ball, from given t, [N].

    If the clipped coordinates of d(t) were those of the solution, the solution would be at

        t' = t sqrt(radius^2 - ||d_clipped||^2) / ||d_free||.

    ||d||^2 is a concave function of t^2, and this is a step of Newton's method on it: t' is at most
    the solution, as is radius / ||u||. From there t only increases and coordinates only become
    clipped, so the iteration ends; rows that have ended do not change. Where reading a value would
    stall the device, a fixed number of steps is made.
    """
    close = _CLOSE * torch.finfo(u.dtype).eps
    bound = radius**2
    least = radius / u.norm(dim=1).clamp(min=1e-30)
    free_reads = reading_is_free(u.device)
    # New memory for every operation takes longer than the operation. Gradients need it.
    recorded = u.requires_grad
    scaled = u * t[:, None]
    d = torch.clamp(scaled, low, high)
    total = _squared(d)
    rows, part, inside = (None, None, None) if recorded else (scaled, torch.empty_like(d), d)
    for _ in range(_MOST_STEPS if free_reads else _FIXED_STEPS):
        # Float arithmetic with signs; comparisons and `where` are several times slower.
        outside = torch.sub(scaled, d, out=rows).sign_()
        clipped = torch.mul(outside, d, out=part)
        rest = (bound - _squared(clipped)).clamp(min=0)
        length = _squared(torch.addcmul(d, outside, clipped, value=-1, out=part))
        wanted = (t * (rest / length.clamp(min=1e-30)).sqrt()).clamp(max=1)
        t_new = torch.maximum(wanted, least)
        changed = ~_at_radius(total, bound) & ((t_new - t).abs() > close / 2 * t)
        if free_reads and not changed.any():
            break
        t = torch.where(changed, t_new, t)
        scaled = torch.mul(u, t[:, None], out=rows)
        d = torch.clamp(scaled, low, high, out=inside)
        total = _squared(d)
        if free_reads and bool(_at_radius(total, bound).all()):
            break
    return d


def _at_radius(squared: Tensor, bound: Tensor) -> Tensor:
    """[N] bool: which squared lengths, [N], equal the squared radius, [N], up to rounding."""
    return (squared - bound).abs() <= _CLOSE * torch.finfo(bound.dtype).eps * bound


def _squared(v: Tensor) -> Tensor:
    """[N] squared Euclidean norms of the rows of v, [N, d]."""
    length: Tensor = torch.linalg.vector_norm(v, dim=1)
    return length**2


def project_l1(u: Tensor, low: Tensor, high: Tensor, radius: Tensor) -> Tensor:
    """argmin ||d - u||_2 with ||d||_1 <= radius and low <= d <= high.

    Rows that are inside of the ball after clipping have ended; the others are shrunk
    (`_shrunk_to_radius`). Arguments as `project_l2`.
    """
    d = torch.clamp(u, low, high)
    # Rows at the radius count as outside: this sum is in single precision.
    close = _CLOSE * torch.finfo(u.dtype).eps
    inside = d.abs().sum(1) <= (1 - close) * radius
    if not reading_is_free(u.device):
        return torch.where(inside[:, None], d, _shrunk_to_radius(u, low, high, radius))
    rows = (~inside).nonzero()[:, 0]
    if not len(rows):
        return d
    if len(rows) == len(d):
        return _shrunk_to_radius(u, low, high, radius)
    part = _shrunk_to_radius(*(v.index_select(0, rows) for v in (u, low, high, radius)))
    return d.index_copy(0, rows, part) if u.requires_grad else copy_rows(d, rows, part)


def _shrunk_to_radius(u: Tensor, low: Tensor, high: Tensor, radius: Tensor) -> Tensor:
    """The projection of `project_l1` for rows that are outside of the ball.

    The solution is |d_i| = min(max(|u_i| - s, 0), b_i), where b_i is the distance to the box on the
    side of u_i, and s >= 0 is the smallest value for which the sum is at most radius (Croce & Hein
    2021, Sec. 3.1). The sum decreases with s and is piecewise linear. The first step is one of
    Newton's method, which counts the coordinates that are free; the others are secant steps, which
    are exact once no further coordinate changes sides. Where a step leaves the bracket of s, the
    bracket is halved.
    """
    unit = torch.finfo(u.dtype).eps
    size = u.abs()
    sign = u.sign()
    room = torch.where(u > 0, high, -low)  # signs times an infinite box would be NaN
    radius = radius.double()
    below = torch.zeros_like(radius)  # the sum exceeds the radius at `below`, or s = 0
    above = size.amax(1).double()  # the sum is at most the radius at `above`
    s = below
    d = torch.minimum(size, room)
    excess = d.sum(1).double() - radius
    slope = (d.sign() * (room - d).sign()).sum(1).double()  # free coordinates
    done = excess <= 0
    kept = None if u.requires_grad else d  # as in `_scaled_to_radius`
    free_reads = reading_is_free(u.device)
    for _ in range(_MOST_STEPS):
        step = s + excess / slope
        inside = (step > below) & (step < above)
        s_new = torch.where(done, s, torch.where(inside, step, (below + above) / 2))
        d = _shrunk(size, room, s_new, kept)
        excess_new = d.sum(1).double() - radius
        slope = torch.where(done, slope, (excess - excess_new) / (s_new - s))
        s = s_new
        excess = excess_new
        below = torch.where(excess > 0, s, below)
        above = torch.where(excess > 0, above, s)
        # The sum equals the radius up to rounding, or s cannot be determined more precisely.
        at_radius = excess.abs() <= _CLOSE * unit * radius
        done = done | at_radius | (above - below <= unit * above)
        if free_reads and bool(done.all()):
            break
    # The sum in single precision may be above the radius by a few units in the last place.
    total = d.sum(1, dtype=torch.float64)
    fit = (radius / total.clamp(min=1e-30)).clamp(max=1).to(u)
    return sign * d * fit[:, None] if u.requires_grad else sign.mul_(d).mul_(fit[:, None])


def _shrunk(size: Tensor, room: Tensor, s: Tensor, out: Tensor | None) -> Tensor:
    """min(max(size - s, 0), room), [N, d]; in the memory of `out`, if there is one."""
    positive = torch.clamp(torch.sub(size, s[:, None].to(size), out=out), min=0, out=out)
    return torch.minimum(positive, room, out=out)
