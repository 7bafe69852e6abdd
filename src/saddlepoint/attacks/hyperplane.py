"""Distance and projection to a hyperplane, in the norm of the set and inside its box."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from saddlepoint.attacks.spaces import Ball, per_example


def distance(value: Tensor, grad: Tensor, space: Ball) -> Tensor:
    """[N] how far a linear function with this value and gradient is from zero: |value| / ||grad||_q, 1/p + 1/q = 1."""
    dual = {1: math.inf, 2: 2, math.inf: 1}[space.p]
    length: Tensor = torch.linalg.vector_norm(grad.flatten(1), dual, dim=1)
    return value.abs() / length.clamp(min=1e-12)


def step_to_plane(x: Tensor, normal: Tensor, rise: Tensor, space: Ball) -> Tensor:
    """The shortest step d with <normal, d> = rise that keeps x + d in the box: argmin ||d||_p.

    With a = |normal| and t = |d|, room_i the way left to the box: minimize ||t||_p with <a, t> = |rise| and 0 <= t <= room. Where
    the box is too small for the plane, every coordinate goes as far as it can. The projections of FAB, Croce & Hein 2020.
    """
    low, high = space.box
    way = per_example(rise.sign(), x) * normal.sign()
    room = torch.where(way > 0, high - x, x - low).clamp(min=0)
    a = normal.abs().flatten(1)
    room = room.flatten(1)
    rise = rise.abs().double()
    t = (
        _fill_strongest(a, room, rise)
        if space.p == 1
        else _fill_evenly(a, room, rise, power=1 / (space.p - 1))
    )
    return way * t.view_as(x)


# Sums over thousands of pixels decide where a coordinate stops: they are taken in double precision.
def _fill_evenly(a: Tensor, room: Tensor, rise: Tensor, power: float) -> Tensor:
    """t_i = min(s a_i^power, room_i) with <a, t> = rise: the KKT point for p > 1, power = 1 / (p - 1).

    <a, t(s)> is concave and piecewise linear, so Newton's steps from s = 0 never overshoot and end after finitely many pieces.
    """
    share = torch.where(a > 0, a**power, 0.0)
    stops = (
        room / share
    )  # [N, d] the s at which a coordinate reaches the box; never where it does not move
    speeds = a * share
    ends = a * room
    s = torch.zeros_like(rise)
    while True:
        free = s[:, None] < stops
        left = rise - torch.where(free, 0.0, ends).sum(1, dtype=torch.float64)
        speed = torch.where(free, speeds, 0.0).sum(1, dtype=torch.float64)
        wanted = torch.where(speed > 0, left / speed.clamp(min=torch.finfo(torch.float64).tiny), s)
        grows = wanted > s * (1 + 4 * torch.finfo(torch.float64).eps)
        if not grows.any():
            # Where the plane lies beyond the box everything has stopped and s need not reach the last stop.
            return torch.where(
                free,
                torch.minimum(s[:, None].to(a) * share, room),
                torch.where(share > 0, room, 0.0),
            )
        s = torch.where(
            grows, wanted, s
        )  # a row that has arrived stays, whatever its neighbors still do


def _fill_strongest(a: Tensor, room: Tensor, rise: Tensor) -> Tensor:
    """p = 1: the coordinates of largest a go to the edge of the box one after another until <a, t> = rise."""
    a, order = a.sort(dim=1, descending=True, stable=True)
    room = room.gather(1, order)
    ends = (a * room).double()
    before = ends.cumsum(1) - ends  # what the stronger ones have contributed
    t = (
        ((rise[:, None] - before) / a.clamp(min=torch.finfo(a.dtype).tiny))
        .clamp(min=0)
        .to(a)
        .minimum(room)
    )
    return torch.zeros_like(t).scatter(1, order, torch.where(a > 0, t, 0.0))
