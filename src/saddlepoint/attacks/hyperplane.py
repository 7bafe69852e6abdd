"""Distance and shortest step to a hyperplane, in the norm of the set and inside its box."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from saddlepoint.attacks.spaces import Ball, per_example


def distance(value: Tensor, grad: Tensor, space: Ball) -> Tensor:
    """The distance to the zero of a linear function: |value| / ||grad||_q with 1/p + 1/q = 1.

    Args:
        value: value of the function, [N].
        grad: its gradient, [N, ...].
        space: gives the norm p.

    Returns:
        [N], in the norm of the set.
    """
    dual = {1: math.inf, 2: 2, math.inf: 1}[space.p]
    length: Tensor = torch.linalg.vector_norm(grad.flatten(1), dual, dim=1)
    return value.abs() / length.clamp(min=1e-12)


def step_to_plane(x: Tensor, normal: Tensor, rise: Tensor, space: Ball) -> Tensor:
    """The shortest step d with <normal, d> = rise that keeps x + d in the box: argmin ||d||_p.

    With a = |normal|, t = |d| and room_i the distance of x_i to the box, this is: minimize ||t||_p
    subject to <a, t> = |rise| and 0 <= t <= room. If the box is too small to reach the plane, every
    coordinate moves as far as it can. These are the projections of FAB, Croce & Hein 2020.

    Args:
        x: points in the box, [N, ...].
        normal: normal vectors of the planes, [N, ...].
        rise: wanted change of <normal, x>, [N].
        space: gives the norm p and the box.

    Returns:
        The steps, [N, ...].
    """
    low, high = space.box
    direction = per_example(rise.sign(), x) * normal.sign()
    room = torch.where(direction > 0, high - x, x - low).clamp(min=0).flatten(1)
    a = normal.abs().flatten(1)
    rise = rise.abs().double()
    if space.p == 1:
        t = _fill_strongest(a, room, rise)
    else:
        t = _fill_evenly(a, room, rise, power=1 / (space.p - 1))
    return direction * t.view_as(x)


def _fill_evenly(a: Tensor, room: Tensor, rise: Tensor, power: float) -> Tensor:
    """t_i = min(s a_i^power, room_i) with <a, t> = rise: the KKT point for p > 1.

    The power is 1 / (p - 1). <a, t(s)> is concave and piecewise linear, so Newton steps from s = 0
    never overshoot and end after finitely many pieces. Sums over thousands of pixels decide where a
    coordinate stops, so they use double precision.
    """
    share = torch.where(a > 0, a**power, 0.0)
    # [N, d] the s at which a coordinate reaches the box; infinite for one that does not move.
    stops = room / share
    speeds = a * share
    ends = a * room
    s = torch.zeros_like(rise)
    while True:
        free = s[:, None] < stops
        remaining = rise - torch.where(free, 0.0, ends).sum(1, dtype=torch.float64)
        speed = torch.where(free, speeds, 0.0).sum(1, dtype=torch.float64)
        wanted = torch.where(
            speed > 0, remaining / speed.clamp(min=torch.finfo(torch.float64).tiny), s
        )
        grows = wanted > s * (1 + 4 * torch.finfo(torch.float64).eps)
        if not grows.any():
            # If the plane is outside the box, all coordinates have stopped, although s may be less
            # than the last stop.
            return torch.where(
                free,
                torch.minimum(s[:, None].to(a) * share, room),
                torch.where(share > 0, room, 0.0),
            )
        s = torch.where(grows, wanted, s)  # a finished row does not change while others continue


def _fill_strongest(a: Tensor, room: Tensor, rise: Tensor) -> Tensor:
    """p = 1: coordinates go to the edge of the box in order of decreasing a until <a, t> = rise."""
    a, order = a.sort(dim=1, descending=True, stable=True)
    room = room.gather(1, order)
    ends = (a * room).double()
    before = ends.cumsum(1) - ends  # the contribution of the stronger coordinates
    t = (
        ((rise[:, None] - before) / a.clamp(min=torch.finfo(a.dtype).tiny))
        .clamp(min=0)
        .to(a)
        .minimum(room)
    )
    return torch.zeros_like(t).scatter(1, order, torch.where(a > 0, t, 0.0))
