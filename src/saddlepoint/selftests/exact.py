"""Exact worst cases beyond one linear classifier: of mixtures, of side conditions, of maps that are not monotone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations

import torch
from torch import Tensor

_ROUNDING = 1e-9


def meet(
    normals: Tensor, offsets: Tensor, low: Tensor, high: Tensor, sign: Tensor | None = None
) -> Tensor:
    """[N] bool: does the box hold a point x with s n_k x + o_k >= 0 for all K half-spaces? normals [1 or N, K, d], offsets [N, K].

    By duality it does unless some weights l >= 0 show the contrary: h(l) = max_x sum_k l_k (s n_k x + o_k) < 0 (Farkas). h is
    linear between the planes l_k = 0 and (sum_k l_k n_k)_i = 0, so that it is least on one of the rays in which K - 1 of these
    K + d meet: all of them are tried.
    """
    count = normals.shape[1]
    normals = normals.double()
    sign = torch.ones(len(low), dtype=torch.float64) if sign is None else sign
    planes = torch.cat(
        [torch.eye(count, dtype=torch.float64).expand(len(normals), -1, -1), normals.mT], dim=1
    )  # [M, K + d, K]
    chosen = list(combinations(range(planes.shape[1]), count - 1))
    across = (
        torch.linalg.svd(planes[:, chosen])[2][:, :, -1] if count > 1 else normals.new_ones(1, 1, 1)
    )  # [M, R, K]
    ray = across * across.sum(-1, keepdim=True).sign()
    proof = (ray >= -_ROUNDING).all(-1) & (ray.abs() > _ROUNDING).any(
        -1
    )  # [M, R]; others have weights of both signs
    if len(ray) == 1:
        ray = ray[:, proof[0]]
        proof = proof[:, proof[0]]
    pull = sign[:, None, None] * (ray @ normals)  # [N, R, d]
    best = torch.maximum(pull * low[:, None], pull * high[:, None]).sum(-1) + (
        ray * offsets[:, None].double()
    ).sum(-1)  # [N, R]
    return ~((best < 0) & proof).any(1)


def mixture(
    weights: Tensor,
    biases: Tensor,
    probabilities: Sequence[float],
    low: Tensor,
    high: Tensor,
    sign: Tensor,
) -> Tensor:
    """[N] the least probability of a right answer when head k, right where sign (w_k x + b_k) > 0, answers with p_k.

    1 - max p(S) over the sets S of heads that one point of the box makes err together.
    """
    lost = torch.zeros(len(low), dtype=torch.float64)
    for size in range(1, len(weights) + 1):
        for heads in map(list, combinations(range(len(weights)), size)):
            share = sum(probabilities[k] for k in heads)
            together = meet(weights[None, heads], -sign[:, None] * biases[heads], low, high, -sign)
            lost = torch.where(together, lost.clamp(min=share), lost)
    return 1 - lost


def reach(
    curve: Callable[[Tensor], Tensor], low: Tensor, high: Tensor, points: int = 257
) -> tuple[Tensor, Tensor]:
    """The least and the greatest value of a continuous function of one pixel on [low, high], on a grid with both ends."""
    grid = low[..., None] + (high - low)[..., None] * torch.linspace(0, 1, points, dtype=low.dtype)
    values = curve(grid)
    return values.amin(-1), values.amax(-1)


def separable(
    gains: Callable[[Tensor], Tensor], choices: Tensor, low: Tensor, high: Tensor, y: Tensor
) -> Tensor:
    """[N] the worst margin of z_c = sum_i g_ci(x_i): each pixel at an end of [low, high], or at the best of `choices` [L] inside.

    `gains` [..., d] -> [..., d, C] tells g. Exact where g takes all of its values there.
    """
    tried = torch.cat(
        [torch.stack([low, high]), choices[:, None, None].expand(-1, *low.shape)]
    )  # [2 + L, N, d]
    reached = (tried >= low) & (tried <= high)
    table = gains(tried)  # [.., N, d, C]
    own = table.gather(-1, y[None, :, None, None].expand(*table.shape[:-1], 1))
    best = torch.where(reached[..., None], table - own, -torch.inf).amax(0).sum(1)  # [N, C]
    return best.scatter(1, y[:, None], -torch.inf).amax(1)
