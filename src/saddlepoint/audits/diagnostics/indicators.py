"""Indicators of attack failure (Pintor et al. 2022), over what an attack read on its way: numbers in, numbers out.

The paper names six: unavailable gradients, unstable predictions, silent success, incomplete optimization, transfer failure and
unconstrained attack failure. Its first version told the fourth by the break-point angle and by an objective that falls: both are
here.
Attackers maximize here, so that a loss of theirs that falls is a value of ours that rises.
"""

from __future__ import annotations

import torch
from torch import Tensor

_LATE = 0.25  # of the steps; the paper takes the last ten of at least a hundred


def zero_gradients(slope: Tensor) -> Tensor:
    """[T, N] largest gradient entries, NaN where none was asked for -> [N] share of steps without any slope."""
    asked = ~slope.isnan()
    return ((slope == 0) & asked).sum(0) / asked.sum(0).clamp(min=1)


def unstable(values: Tensor, center: Tensor) -> Tensor:
    """[K, N] values near an image, [N] its own -> [N] mean relative change, cut off at 1."""
    return ((values - center).abs() / center.abs().clamp(min=1e-12)).mean(0).clamp(max=1.0)


def silent_success(success: Tensor, stands: Tensor) -> Tensor:
    """[T, N] a point of the set fooled, [N] the point that was handed over did not -> [N] bool: a success was thrown away."""
    return success.any(0) & stands


def late_rise(value: Tensor) -> Tensor:
    """[T, N] -> [N] the part of the whole climb of the best value so far that fell to the last quarter of the steps.

    0 of a curve that is flat at its end, 1/4 of a straight one, 0 where nothing rose: incomplete optimization is above 0.05.
    """
    best = value.cummax(0).values
    climb = best[-1] - best[0]
    before = best[max(len(best) - 1 - max(int(_LATE * len(best)), 1), 0)]
    return torch.where(climb > 0, (best[-1] - before) / climb.clamp(min=1e-12), 0.0)


def break_point_angle(value: Tensor) -> Tensor:
    """[T, N] -> [N] degrees: the angle at the bend of the best value so far, steps and climb both scaled to [0, 1].

    The bend is the point farthest above the chord. A curve that rises at once and stays has 90, a straight one, which has not
    arrived, 180; so has one that never rose.
    """
    best = value.double().cummax(0).values
    steps = len(value)
    climb = best[-1] - best[0]
    y = torch.where(
        climb > 0,
        (best - best[0]) / climb.clamp(min=1e-12),
        torch.linspace(0, 1, steps).double()[:, None],
    )  # [T, N]
    x = torch.linspace(0, 1, steps).double()[:, None].expand_as(y)
    bend = (y - x).argmax(0)[None]
    at = torch.stack([x.gather(0, bend)[0], y.gather(0, bend)[0]])  # [2, N]
    back = -at
    ahead = 1 - at
    cosine = (back * ahead).sum(0) / (back.norm(dim=0) * ahead.norm(dim=0)).clamp(min=1e-12)
    return torch.where(
        (bend[0] == 0) | (bend[0] == steps - 1), 180.0, cosine.clamp(-1, 1).arccos().rad2deg()
    )


def falls(value: Tensor) -> Tensor:
    """[T, N] -> [N] share of the steps in the second half that went down: steps that are too long jump over what they look for."""
    late = value[len(value) // 2 :]
    return (
        (late.diff(dim=0) < 0).double().mean(0)
        if len(late) > 1
        else torch.zeros(value.shape[1], dtype=torch.float64)
    )


def jagged(along: Tensor) -> Tensor:
    """[K, N] values on the line from an image to its worst point -> [N] bool: some other point of the line is the highest.

    The set is convex, so that every point of the line could have been handed over.
    """
    return along[:-1].amax(0) > along[-1]


def steps_only(along: Tensor) -> Tensor:
    """[K, N] -> [N] share of neighboring values that are equal to the last bit: a staircase has no slope."""
    return (along.diff(dim=0) == 0).double().mean(0)
