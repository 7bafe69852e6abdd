"""Exact worst cases of mixtures, of constrained problems and of maps that are not monotone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations

import torch
from torch import Tensor

_ROUNDING = 1e-9


def meet(
    normals: Tensor, offsets: Tensor, low: Tensor, high: Tensor, sign: Tensor | None = None
) -> Tensor:
    """Whether each box contains a point x with s n_k x + o_k >= 0 for all K half-spaces.

    By duality (Farkas) such a point exists unless some weights l >= 0 give
    h(l) = max_x sum_k l_k (s n_k x + o_k) < 0. The function h is linear between the planes l_k = 0
    and (sum_k l_k n_k)_i = 0. Its minimum is therefore on one of the rays in which K - 1 of these
    K + d planes intersect. All of these rays are tried.

    Args:
        normals: n, [1 or N, K, d].
        offsets: o, [N, K].
        low: Smallest value of each coordinate, [N, d].
        high: Largest value of each coordinate, [N, d].
        sign: s, [N] of +1 or -1; default +1.

    Returns:
        [N] bool.
    """
    count = normals.shape[1]
    normals = normals.double()
    sign = torch.ones(len(low), dtype=torch.float64) if sign is None else sign
    identity = torch.eye(count, dtype=torch.float64).expand(len(normals), -1, -1)
    planes = torch.cat([identity, normals.mT], dim=1)  # [M, K + d, K]
    chosen = list(combinations(range(planes.shape[1]), count - 1))
    direction: Tensor  # [M, R, K]
    if count > 1:
        direction = torch.linalg.svd(planes[:, chosen])[2][:, :, -1]
    else:
        direction = normals.new_ones(1, 1, 1)
    ray = direction * direction.sum(-1, keepdim=True).sign()
    # [M, R]; the other rays have weights of both signs.
    valid = (ray >= -_ROUNDING).all(-1) & (ray.abs() > _ROUNDING).any(-1)
    if len(ray) == 1:
        ray = ray[:, valid[0]]
        valid = valid[:, valid[0]]
    slope = sign[:, None, None] * (ray @ normals)  # [N, R, d]
    linear = torch.maximum(slope * low[:, None], slope * high[:, None]).sum(-1)
    h = linear + (ray * offsets[:, None].double()).sum(-1)  # [N, R]
    return ~((h < 0) & valid).any(1)


def mixture(
    weights: Tensor,
    biases: Tensor,
    probabilities: Sequence[float],
    low: Tensor,
    high: Tensor,
    sign: Tensor,
) -> Tensor:
    """The smallest probability of a correct prediction of a random mixture of linear heads.

    Head k is used with probability p_k and is correct where sign (w_k x + b_k) > 0. The result is
    1 - max p(S) over the sets S of heads that are all wrong at one point of the box.

    Args:
        weights: w, [K, d].
        biases: b, [K].
        probabilities: p, K numbers.
        low: Smallest value of each coordinate, [N, d].
        high: Largest value of each coordinate, [N, d].
        sign: [N] of +1 or -1.

    Returns:
        [N] float64.
    """
    lost = torch.zeros(len(low), dtype=torch.float64)
    for size in range(1, len(weights) + 1):
        for heads in map(list, combinations(range(len(weights)), size)):
            probability = sum(probabilities[k] for k in heads)
            all_wrong = meet(weights[None, heads], -sign[:, None] * biases[heads], low, high, -sign)
            lost = torch.where(all_wrong, lost.clamp(min=probability), lost)
    return 1 - lost


def value_range(
    curve: Callable[[Tensor], Tensor], low: Tensor, high: Tensor, points: int = 257
) -> tuple[Tensor, Tensor]:
    """The smallest and largest value of a continuous function of one pixel on [low, high].

    The function is evaluated on a grid of `points` points (default 257) that includes both ends.
    """
    grid = low[..., None] + (high - low)[..., None] * torch.linspace(0, 1, points, dtype=low.dtype)
    values = curve(grid)
    return values.amin(-1), values.amax(-1)


def separable(
    gains: Callable[[Tensor], Tensor], choices: Tensor, low: Tensor, high: Tensor, y: Tensor
) -> Tensor:
    """[N] the worst margin of z_c = sum_i g_ci(x_i).

    Each pixel is at an end of [low, high] or at the best of the `choices` inside. The result is
    exact if g takes all of its values at these points.

    Args:
        gains: The function g, [..., d] -> [..., d, C].
        choices: Pixel values to try, [L].
        low: Smallest value of each pixel, [N, d].
        high: Largest value of each pixel, [N, d].
        y: Labels, [N].
    """
    ends = torch.stack([low, high])
    tried = torch.cat([ends, choices[:, None, None].expand(-1, *low.shape)])  # [2 + L, N, d]
    reachable = (tried >= low) & (tried <= high)
    table = gains(tried)  # [2 + L, N, d, C]
    label_gain = table.gather(-1, y[None, :, None, None].expand(*table.shape[:-1], 1))
    best = (
        torch.where(reachable[..., None], table - label_gain, -torch.inf).amax(0).sum(1)
    )  # [N, C]
    return best.scatter(1, y[:, None], -torch.inf).amax(1)
