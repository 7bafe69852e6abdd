"""Training methods for networks with several exits."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from saddlepoint.attacks.losses import cross_entropy
from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import Ball, per_example
from saddlepoint.rng import Keys
from saddlepoint.training.inner_attack import craft, evaluating
from saddlepoint.training.method import Method
from saddlepoint.training.multi_exit_view import Stacked, exits_of


@dataclass(frozen=True)
class OverExits:
    """sum_i w_i loss_i, loss_i being what `method` makes of exit i alone; w_i = 1/L unless given.

    The adversary is one point for all exits: it maximizes the mean over exits of what the method's own adversary maximizes, which
    for the cross-entropy is the average attack (Hu et al. 2020). A friendly adversary is stopped when the mean logits err.
    """

    method: Method
    weights: tuple[float, ...] | None = (
        None  # one per exit; all 1 give the plain sum of Huang et al. 2018
    )

    def loss(self, net: nn.Module, x: Tensor, y: Tensor, space: Ball, keys: Keys) -> Tensor:
        losses = self.method.loss(Stacked(net), x, y, space, keys)  # [L, N]
        return losses.mean(0) if self.weights is None else _weighted(losses, self.weights)


@dataclass(frozen=True)
class MaxAverageTraining:
    """sum_i w_i ((1 - share) CE(f_i(x), y) + share CE(f_i(x'), y)), x' the max-average adversary (Hu et al. 2020).

    PGD attacks every exit alone; each example keeps the one of the L points whose cross-entropy is largest on average over exits.
    That costs L times an average attack.
    """

    share: float = 0.5  # of the adversarial loss
    weights: tuple[float, ...] | None = None  # one per exit, 1 unless given
    attack: PGD = field(default_factory=lambda: PGD(steps=10))

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise ValueError(f"MaxAverageTraining needs 0 <= share <= 1, got share={self.share}.")

    def loss(self, net: nn.Module, x: Tensor, y: Tensor, space: Ball, keys: Keys) -> Tensor:
        stacked = Stacked(net)
        attacked = cross_entropy(stacked(max_average(net, x, y, space, keys, self.attack)), y)
        losses = (1 - self.share) * cross_entropy(stacked(x), y) + self.share * attacked  # [L, N]
        return _weighted(losses, self.weights or (1.0,) * len(losses))


def max_average(
    net: nn.Module, x: Tensor, y: Tensor, space: Ball, keys: Keys, attack: PGD
) -> Tensor:
    """x_{i*} with i* = argmax_i mean_j CE(f_j(x_i), y), x_i crafted on exit i alone; i* per example (Xu et al., Eq. 3)."""
    with evaluating(net), torch.no_grad():
        count = len(exits_of(net, x[:1]))
    best = x
    most = x.new_full((len(x),), -torch.inf)
    for exit_number in range(count):
        point = craft(_Exit(net, exit_number), x, y, space, keys, attack)
        with evaluating(net), torch.no_grad():
            value = cross_entropy(Stacked(net)(point), y).mean(0)
        best = torch.where(per_example(value > most, x), point, best)
        most = torch.maximum(value, most)
    return best


class _Exit(nn.Module):
    """One exit, as a network of its own."""

    def __init__(self, net: nn.Module, number: int) -> None:
        super().__init__()
        self.net = net
        self.number = number

    def forward(self, x: Tensor) -> Tensor:
        return exits_of(self.net, x)[self.number]


def _weighted(losses: Tensor, weights: tuple[float, ...]) -> Tensor:
    if len(weights) != len(losses):
        raise ValueError(
            f"{len(weights)} weights were given for the losses of {len(losses)} exits. Give one per exit."
        )
    return torch.einsum("l,ln->n", losses.new_tensor(weights), losses)
