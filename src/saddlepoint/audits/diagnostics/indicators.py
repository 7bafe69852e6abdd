"""Indicators of attack failure (Pintor et al. 2022), computed from the recorded steps of an attack.

The paper has six: unavailable gradients, unstable predictions, silent success, incomplete
optimization, transfer failure and unconstrained attack failure. Its first version measured the
fourth by the break-point angle and by a decreasing objective; both are here. Attacks maximize a
value here, so a loss that decreases in the paper is a value that increases here.
"""

from __future__ import annotations

import torch
from torch import Tensor

_LATE = 0.25  # fraction of the steps; the paper takes the last ten of at least a hundred


def zero_gradient_share(gradient: Tensor) -> Tensor:
    """[N] the fraction of computed gradients that are exactly zero.

    Args:
        gradient: [T, N] largest absolute gradient entry per step; NaN if none was computed.
    """
    computed = ~gradient.isnan()
    return ((gradient == 0) & computed).sum(0) / computed.sum(0).clamp(min=1)


def relative_change(values: Tensor, center: Tensor) -> Tensor:
    """[N] the mean relative change of values [K, N] near an image from its value [N], at most 1."""
    return ((values - center).abs() / center.abs().clamp(min=1e-12)).mean(0).clamp(max=1.0)


def silent_success(success: Tensor, robust: Tensor) -> Tensor:
    """[N] bool: an attack evaluated a misclassified point and returned another one.

    Args:
        success: [T, N] bool: the point of a step is in the set and misclassified.
        robust: [N] bool: the returned point is classified correctly.
    """
    return success.any(0) & robust


def late_increase(value: Tensor) -> Tensor:
    """[N] the part of the increase of the best value so far that belongs to the last quarter.

    0 for a curve that is constant at its end, 1/4 for a straight line, 0 if nothing increased.
    Optimization is incomplete above 0.05.

    Args:
        value: [T, N] value per step.
    """
    best = value.cummax(0).values
    increase = best[-1] - best[0]
    late_steps = max(int(_LATE * len(best)), 1)
    before = best[max(len(best) - 1 - late_steps, 0)]
    return torch.where(increase > 0, (best[-1] - before) / increase.clamp(min=1e-12), 0.0)


def break_point_angle(value: Tensor) -> Tensor:
    """[N] the angle in degrees at the bend of the best value so far, with both axes in [0, 1].

    The bend is the point farthest above the line from the first to the last point. A curve that
    reaches its maximum at once has about 90 degrees. A straight line, which has not converged, has
    180, and so does a curve that never increases.

    Args:
        value: [T, N] value per step.
    """
    best = value.double().cummax(0).values
    steps = len(value)
    increase = best[-1] - best[0]
    line = torch.linspace(0, 1, steps).double()[:, None]
    scaled = (best - best[0]) / increase.clamp(min=1e-12)
    y = torch.where(increase > 0, scaled, line)  # [T, N]
    x = line.expand_as(y)
    bend = (y - x).argmax(0)[None]
    corner = torch.stack([x.gather(0, bend)[0], y.gather(0, bend)[0]])  # [2, N]
    to_start = -corner
    to_end = 1 - corner
    lengths = to_start.norm(dim=0) * to_end.norm(dim=0)
    cosine = (to_start * to_end).sum(0) / lengths.clamp(min=1e-12)
    straight = (bend[0] == 0) | (bend[0] == steps - 1)
    return torch.where(straight, 180.0, cosine.clamp(-1, 1).arccos().rad2deg())


def decreasing_share(value: Tensor) -> Tensor:
    """[N] the fraction of steps in the second half that decreased the value [T, N].

    Steps that are too long jump over the maximum.
    """
    late = value[len(value) // 2 :]
    if len(late) <= 1:
        return torch.zeros(value.shape[1], dtype=torch.float64)
    return (late.diff(dim=0) < 0).double().mean(0)


def overshot(line: Tensor) -> Tensor:
    """[N] bool: another point on the line to the worst point has a higher value than that point.

    The set is convex, so it contains every point of the line.

    Args:
        line: [K, N] values at equal steps from an image to its worst point, which is the last.
    """
    return line[:-1].amax(0) > line[-1]


def equal_neighbors(line: Tensor) -> Tensor:
    """[N] the fraction of neighbors in [K, N] values that are exactly equal.

    It is high for piecewise constant outputs.
    """
    return (line.diff(dim=0) == 0).double().mean(0)
