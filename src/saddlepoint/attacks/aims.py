"""Which views the attacker aims at: (loss, [V, N, C] logits, [N] labels) -> [N] value.

The views are those that the adversary keeps (`Direct(keep=...)`), all by default.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from saddlepoint.attacks.losses import Loss
from saddlepoint.defenses import Context, Strategy, mean_logits

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


def max_over_views(loss: Loss, logits: Tensor, y: Tensor) -> Tensor:
    """min_v loss(z_v): the attacker must win on every view."""
    return loss(logits, y).amin(0)


def expected(weights: Tensor) -> Aim:
    """sum_v w_v loss(z_v): the expected loss against a defender that picks view v with probability w_v."""

    def aim(loss: Loss, logits: Tensor, y: Tensor) -> Tensor:
        if len(weights) != len(logits):
            raise ValueError(
                f"expected() was given {len(weights)} weights, but {len(logits)} views are kept."
            )
        return torch.einsum("v,vn->n", weights.to(logits), loss(logits, y))

    return aim


@dataclass(frozen=True)
class Gate:
    """loss(mean of the views that the strategy picks at this very point): the attack follows the defender from exit to exit.

    The choice itself has no gradient; the exits chosen are looked up anew at every iterate. Needs all views.
    """

    strategy: Strategy

    def __post_init__(self) -> None:
        if self.strategy.random:
            raise ValueError(
                f"Gate follows a choice that the input decides, but {type(self.strategy).__name__} draws. Ascend the expected loss "
                "instead: mixture(members, probabilities)."
            )

    def __call__(self, loss: Loss, logits: Tensor, y: Tensor) -> Tensor:
        picked = self.strategy.pick(
            logits.detach(), Context.seeded(0, len(y))
        )  # no coins are tossed
        return loss(mean_logits(logits, picked), y)


@dataclass(frozen=True)
class Mixture:
    """sum_j s_j loss(mean_{v in E_j} z_v): the expected loss against a defender that answers with the mean of E_j with chance s_j.

    Exact: no draws, so no variance. It is what EoT over the defender's choice estimates. The subsets are those of positive chance.
    """

    shares: tuple[tuple[float, ...], ...]  # [S, V] 1 / |E_j| where the view belongs to E_j, else 0
    probabilities: tuple[float, ...]  # [S]

    def __call__(self, loss: Loss, logits: Tensor, y: Tensor) -> Tensor:
        if len(self.shares[0]) != len(logits):
            raise ValueError(
                f"mixture() was given subsets of {len(self.shares[0])} views, but {len(logits)} views are kept."
            )
        answers = torch.einsum("sv,vnc->snc", logits.new_tensor(self.shares), logits)
        return torch.einsum("s,sn->n", logits.new_tensor(self.probabilities), loss(answers, y))


def mixture(members: Tensor, probabilities: Tensor) -> Mixture:
    """The expected loss against a defender that draws a subset: `members` [S, V] says which views are in it, 0 or 1."""
    members = members.double()
    chances = probabilities.double()
    if (
        members.ndim != 2
        or chances.shape != members.shape[:1]
        or not ((members == 0) | (members == 1)).all()
    ):
        raise ValueError(
            f"mixture() needs members [S, V] of 0 and 1 and probabilities [S], got {list(members.shape)} and {list(chances.shape)}."
        )
    if not (members.sum(1) > 0).all():
        raise ValueError(
            "mixture() was given a subset without views: somebody has to answer. Drop its row and its probability."
        )
    if (chances < 0).any() or abs(float(chances.sum()) - 1) > 1e-6:
        raise ValueError(
            f"the probabilities of a mixture must be at least 0 and sum to one, got a sum of {float(chances.sum()):.6g} with "
            f"{int((chances < 0).sum())} below zero. Divide them by their sum."
        )
    used = chances > 0
    shares = members / members.sum(1, keepdim=True)
    return Mixture(tuple(map(tuple, shares[used].tolist())), tuple(chances[used].tolist()))
