"""Which views the attacker aims at: (loss, [V, N, C] logits, [N] labels) -> [N] value.

The views are those that the adversary keeps (`Direct(keep=...)`), all by default.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from saddlepoint.attack.loss import Loss

Aim = Callable[[Loss, Tensor, Tensor], Tensor]


def last(loss: Loss, logits: Tensor, y: Tensor) -> Tensor:
    """The loss of the final view."""
    return loss(logits[-1], y)


def mean_of_losses(loss: Loss, logits: Tensor, y: Tensor) -> Tensor:
    """mean_v loss(z_v): every view counts, whatever the others do."""
    return loss(logits, y).mean(0)


def loss_of_mean(loss: Loss, logits: Tensor, y: Tensor) -> Tensor:
    """loss(mean_v z_v): what a defender that averages logits really answers."""
    return loss(logits.mean(0), y)


def hardest(loss: Loss, logits: Tensor, y: Tensor) -> Tensor:
    """min_v loss(z_v): the attacker must win on every view."""
    return loss(logits, y).amin(0)


def expected(weights: Tensor) -> Aim:
    """sum_v w_v loss(z_v): the expected loss against a defender that picks view v with probability w_v."""

    def aim(loss: Loss, logits: Tensor, y: Tensor) -> Tensor:
        if len(weights) != len(logits):
            raise ValueError(f"expected() was given {len(weights)} weights, but {len(logits)} views are kept.")
        return torch.einsum("v,vn->n", weights.to(logits), loss(logits, y))

    return aim
