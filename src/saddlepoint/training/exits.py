"""Training methods for networks with several exits."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from saddlepoint import phrases
from saddlepoint.attacks.losses import cross_entropy
from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import Ball, per_example
from saddlepoint.defenses import eval_mode
from saddlepoint.rng import Keys
from saddlepoint.training.inner_attack import adversarial_examples
from saddlepoint.training.method import Method, ScheduledMethod
from saddlepoint.training.multi_exit_view import StackedExits, exit_logits


@dataclass(frozen=True)
class OverExits:
    """The weighted sum of a method's losses over the exits: sum_i w_i loss_i.

    One adversarial example is crafted for all exits. It maximizes the mean over the exits of the
    method's own attack loss. For the cross-entropy this is the average attack (Hu et al. 2020).
    With `FAT` the attack stops early when the mean logits are wrong.
    """

    method: Method  # gives the loss of each exit
    # One weight per exit. None means 1/L each; all 1 give the plain sum of Huang et al. 2018.
    weights: tuple[float, ...] | None = None

    def at(self, done: float) -> OverExits:
        if isinstance(self.method, ScheduledMethod):
            return replace(self, method=self.method.at(done))
        return self

    def loss(self, net: nn.Module, x: Tensor, y: Tensor, space: Ball, keys: Keys) -> Tensor:
        losses = self.method.loss(StackedExits(net), x, y, space, keys)  # [L, N]
        return losses.mean(0) if self.weights is None else _weighted_sum(losses, self.weights)


@dataclass(frozen=True)
class MaxAverageTraining:
    """sum_i w_i ((1 - share) CE(f_i(x), y) + share CE(f_i(x'), y)) (Hu et al. 2020).

    x' is the max-average attack. PGD attacks every exit separately, and each example keeps the one
    of the L points with the largest mean cross-entropy over the exits. This costs L times as much
    as an average attack.
    """

    share: float = 0.5  # weight of the adversarial loss
    weights: tuple[float, ...] | None = None  # one per exit; None means 1 each
    attack: PGD = field(default_factory=lambda: PGD(steps=10))

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise ValueError(f"MaxAverageTraining needs 0 <= share <= 1, got share={self.share}.")

    def loss(self, net: nn.Module, x: Tensor, y: Tensor, space: Ball, keys: Keys) -> Tensor:
        stacked = StackedExits(net)
        attacked = cross_entropy(stacked(max_average(net, x, y, space, keys, self.attack)), y)
        losses = (1 - self.share) * cross_entropy(stacked(x), y) + self.share * attacked  # [L, N]
        return _weighted_sum(losses, self.weights or (1.0,) * len(losses))


def max_average(
    net: nn.Module, x: Tensor, y: Tensor, space: Ball, keys: Keys, attack: PGD
) -> Tensor:
    """Return x_{i*} with i* = argmax_i mean_j CE(f_j(x_i), y) per example (Xu et al., Eq. 3).

    x_i is crafted on exit i alone.

    Args:
        net: The network with L exits.
        x: Clean examples [N, ...].
        y: Labels [N].
        space: The perturbation set.
        keys: Random keys [N].
        attack: The attack on each exit.
    """
    with eval_mode(net), torch.no_grad():
        count = len(exit_logits(net, x[:1]))
    best = x
    best_value = x.new_full((len(x),), -torch.inf)
    for number in range(count):
        point = adversarial_examples(_SingleExit(net, number), x, y, space, keys, attack)
        with eval_mode(net), torch.no_grad():
            value = cross_entropy(StackedExits(net)(point), y).mean(0)
        best = torch.where(per_example(value > best_value, x), point, best)
        best_value = torch.maximum(value, best_value)
    return best


class _SingleExit(nn.Module):
    """A network that outputs the logits of one exit only."""

    def __init__(self, net: nn.Module, number: int) -> None:
        super().__init__()
        self.net = net
        self.number = number

    def forward(self, x: Tensor) -> Tensor:
        return exit_logits(self.net, x)[self.number]


def _weighted_sum(losses: Tensor, weights: tuple[float, ...]) -> Tensor:
    if len(weights) != len(losses):
        raise ValueError(
            f"{phrases.count(len(weights), 'weight')} {phrases.agree(len(weights), 'was', 'were')} "
            f"given for the losses of {phrases.count(len(losses), 'exit')}. Give one weight per "
            "exit."
        )
    return torch.einsum("l,ln->n", losses.new_tensor(weights), losses)
