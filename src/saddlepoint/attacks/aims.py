"""Aims: how the losses of several views are combined to one value per example.

An aim maps a loss, the logits of the views, [V, N, C], and labels, [N], to values, [N]. The views
are those that the adversary keeps (`Direct(keep=...)`), all by default.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from saddlepoint.attacks.losses import Loss
from saddlepoint.defenses import Context, Strategy, mean_logits
from saddlepoint.phrases import agree, count

Aim = Callable[[Loss, Tensor, Tensor], Tensor]


def last_view(loss: Loss, logits: Tensor, y: Tensor) -> Tensor:
    """loss(z_V): the loss of the last view."""
    return loss(logits[-1], y)


def mean_of_losses(loss: Loss, logits: Tensor, y: Tensor) -> Tensor:
    """mean_v loss(z_v): the mean of the losses of all views."""
    return loss(logits, y).mean(0)


def last_value_summed_gradient(loss: Loss, logits: Tensor, y: Tensor) -> Tensor:
    """loss(z_V), with the gradient of sum_v loss(z_v).

    The best point is selected by the loss of the last view, while the gradients of earlier views
    lead to it: those of the states of an iteration (Yang et al. 2022, Eq. 9), or of a purification
    (Croce et al. 2022, Sec. 3.5).
    """
    losses = loss(logits, y)  # [V, N]
    earlier = losses[:-1].sum(0)
    return losses[-1] + (earlier - earlier.detach())


def loss_of_mean(loss: Loss, logits: Tensor, y: Tensor) -> Tensor:
    """loss(mean_v z_v): the loss of a defender that averages the logits of all views."""
    return loss(logits.mean(0), y)


def min_over_views(loss: Loss, logits: Tensor, y: Tensor) -> Tensor:
    """min_v loss(z_v): the smallest loss of any view.

    With the margin loss it is positive only if every view is misclassified.
    """
    return loss(logits, y).amin(0)


@dataclass(frozen=True)
class AtLeast:
    """The loss of the view with the `count`-th largest loss.

    With the margin loss it is positive only if at least `count` views are misclassified. With a
    targeted loss it describes a vote: `count` views must favor the same class over the label.
    """

    count: int  # from 1 to the number of views

    def __call__(self, loss: Loss, logits: Tensor, y: Tensor) -> Tensor:
        return loss(logits, y).sort(0, descending=True).values[self.count - 1]


def expected(weights: Tensor) -> Aim:
    """sum_v w_v loss(z_v): the expected loss of a defender that uses view v with probability w_v.

    Args:
        weights: probabilities of the kept views, [V].

    Returns:
        An aim. It raises ValueError if the number of views differs.
    """

    def aim(loss: Loss, logits: Tensor, y: Tensor) -> Tensor:
        if len(weights) != len(logits):
            raise ValueError(
                f"expected() was given {count(len(weights), 'weight')}, but "
                f"{count(len(logits), 'view')} {agree(len(logits), 'is', 'are')} kept."
            )
        return torch.einsum("v,vn->n", weights.to(logits), loss(logits, y))

    return aim


@dataclass(frozen=True)
class Gate:
    """loss(mean of the views that the strategy selects at the current point).

    The selection is repeated at every point of the attack and has no gradient itself. It needs all
    views.

    Args:
        strategy: a deterministic strategy of a multi-exit network.

    Raises:
        ValueError: the strategy is random.
    """

    strategy: Strategy

    def __post_init__(self) -> None:
        if self.strategy.random:
            raise ValueError(
                "Gate needs a strategy that is a function of the input, but "
                f"{type(self.strategy).__name__} is random. Use the expected loss instead: "
                "mixture(members, probabilities)."
            )

    def __call__(self, loss: Loss, logits: Tensor, y: Tensor) -> Tensor:
        # The seed does not matter: the strategy is deterministic.
        picked = self.strategy.pick(logits.detach(), Context.seeded(0, len(y)))
        return loss(mean_logits(logits, picked), y)


@dataclass(frozen=True)
class Mixture:
    """sum_j s_j loss(mean_{v in E_j} z_v): the expected loss of a defender that draws a subset.

    The defender uses the mean logits of the views in E_j with probability s_j. EoT over the
    defender's choice estimates the same value; here it is exact and has no variance. The subsets
    are those of positive probability. Use `mixture` to create one.
    """

    shares: tuple[tuple[float, ...], ...]  # [S, V] 1 / |E_j| where the view belongs to E_j, else 0
    probabilities: tuple[float, ...]  # [S] s_j

    def __call__(self, loss: Loss, logits: Tensor, y: Tensor) -> Tensor:
        if len(self.shares[0]) != len(logits):
            raise ValueError(
                f"mixture() was given subsets of {count(len(self.shares[0]), 'view')}, "
                f"but {count(len(logits), 'view')} {agree(len(logits), 'is', 'are')} kept."
            )
        outputs = torch.einsum("sv,vnc->snc", logits.new_tensor(self.shares), logits)
        return torch.einsum("s,sn->n", logits.new_tensor(self.probabilities), loss(outputs, y))


def mixture(members: Tensor, probabilities: Tensor) -> Mixture:
    """The expected loss of a defender that draws a subset of the views.

    Args:
        members: [S, V] with 1 where the view belongs to the subset, else 0.
        probabilities: probability of each subset, [S]; they sum to one up to 1e-6.

    Raises:
        ValueError: the arguments have the wrong shape, a subset is empty, or the probabilities are
            no distribution.
    """
    members = members.double()
    chances = probabilities.double()
    if (
        members.ndim != 2
        or chances.shape != members.shape[:1]
        or not ((members == 0) | (members == 1)).all()
    ):
        raise ValueError(
            "mixture() needs members [S, V] of 0 and 1 and probabilities [S], "
            f"got {list(members.shape)} and {list(chances.shape)}."
        )
    if not (members.sum(1) > 0).all():
        raise ValueError(
            "mixture() was given a subset without views. Remove its row and its probability."
        )
    if (chances < 0).any() or abs(float(chances.sum()) - 1) > 1e-6:
        raise ValueError(
            "the probabilities of a mixture must be at least 0 and sum to one, got a sum of "
            f"{float(chances.sum()):.6g} with {int((chances < 0).sum())} below zero. Divide them "
            "by their sum."
        )
    used = chances > 0
    shares = members / members.sum(1, keepdim=True)
    return Mixture(tuple(map(tuple, shares[used].tolist())), tuple(chances[used].tolist()))
