"""L2W-DEN: weights of examples and exits that are learned while the network is trained."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from saddlepoint.attacks.losses import cross_entropy
from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import Ball
from saddlepoint.rng import Keys
from saddlepoint.training.checkpoint import State
from saddlepoint.training.inner_attack import adversarial_examples
from saddlepoint.training.loop import initialized, set_learning_rate
from saddlepoint.training.multi_exit_view import StackedExits


@dataclass(frozen=True)
class LearnedWeights:
    """sum_i w_i CE_i with weights predicted by an MLP from the losses (Han et al. 2022).

    w = 1 + spread (v - mean v) with v = tanh(MLP(CE_1 .. CE_L)) per example. At inference easy
    examples exit early and hard ones late; each should have its largest weight where it exits.

    Every `interval` steps the MLP is updated twice. One half of the batch takes a trial step,
    theta' = theta - rate grad sum_i mean(w_i CE_i). The other half evaluates it: each exit receives
    its share of the examples, those with the highest confidence, and the MLP descends the sum over
    the exits of the mean cross-entropy of theta' on them. Then the halves change roles. The share
    of exit i is proportional to q^i.

    As in the released code, the mean of v is over the whole batch, and the learning rate of the MLP
    follows the schedule of the network. The released code differs in two points: its theta' also
    has momentum and weight decay, and its network takes a step per half. Here the network takes one
    step per batch.
    """

    hidden: int = 500  # units of the MLP's single hidden layer
    spread: float = 0.3
    q: float = 0.75  # the released code counts in twentieths: its index 15
    rate: float = 1e-4  # learning rate of the MLP's Adam
    weight_decay: float = 1e-4  # of the MLP's Adam
    interval: int = 100  # training steps between updates of the MLP
    attack: PGD | None = None  # if given, all losses are taken at the points of the average attack

    def __post_init__(self) -> None:
        if self.q <= 0 or self.interval < 1 or not 0 <= self.spread <= 1:
            raise ValueError(
                "LearnedWeights needs q > 0, interval >= 1 and 0 <= spread <= 1, "
                f"got q={self.q}, interval={self.interval} and spread={self.spread}."
            )

    def begin(self, exits: int, optimizer: torch.optim.Optimizer, seed: int) -> LearnedWeightsRun:
        """Begin a training run.

        Args:
            exits: Number of exits of the network.
            optimizer: The optimizer of the network.
            seed: Decides the initial weights of the MLP.
        """
        parameter = optimizer.param_groups[0]["params"][0]
        mlp = initialized(lambda: self._mlp(exits), seed)
        return LearnedWeightsRun(self, mlp.to(parameter), optimizer)

    def _mlp(self, exits: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Linear(exits, self.hidden), nn.ReLU(), nn.Linear(self.hidden, exits), nn.Tanh()
        )


class LearnedWeightsRun:
    """The state of one training run: the MLP, its Adam and the number of steps taken."""

    def __init__(
        self, method: LearnedWeights, mlp: nn.Sequential, optimizer: torch.optim.Optimizer
    ) -> None:
        self.method = method
        self.mlp = mlp
        self.optimizer = optimizer
        self.steps = 0
        self.adam = torch.optim.Adam(
            mlp.parameters(), method.rate, weight_decay=method.weight_decay
        )

    def loss(self, net: nn.Module, x: Tensor, y: Tensor, space: Ball, keys: Keys) -> Tensor:
        """Return the weighted loss [N]; every `interval` steps also update the MLP."""
        if self.method.attack is not None:
            x = adversarial_examples(net, x, y, space, keys, self.method.attack)
        # Batch norm needs two examples in each half.
        if self.steps % self.method.interval == 0 and len(x) >= 4:
            self._update_mlp(net, x, y)
        self.steps += 1
        losses = cross_entropy(StackedExits(net)(x), y)  # [L, N]
        return (self.weights(losses).detach() * losses).sum(0)

    def weights(self, losses: Tensor) -> Tensor:
        """Return the weights [L, N], of mean 1, for losses [L, N]."""
        v: Tensor = self.mlp(losses.detach().T).T
        return 1 + self.method.spread * (v - v.mean())

    def validation_loss(
        self, net: nn.Module, train: tuple[Tensor, Tensor], validation: tuple[Tensor, Tensor]
    ) -> Tensor:
        """Return the loss on `validation` after one weighted step of the network on `train`.

        The result is differentiable in the parameters of the MLP, which weighted the step.

        Args:
            net: The network; it is not changed.
            train: Examples [M, ...] and labels [M] for the step.
            validation: Other examples [K, ...] and labels [K].
        """
        # The passes of a copy do not change the running statistics.
        ahead = _OneStepAhead(copy.deepcopy(net))
        losses = cross_entropy(StackedExits(ahead)(train[0]), train[1])
        rate = self.optimizer.param_groups[0]["lr"]
        ahead.step((self.weights(losses) * losses).mean(1).sum(), rate)
        return exit_share_loss(StackedExits(ahead)(validation[0]), validation[1], self.method.q)

    def _update_mlp(self, net: nn.Module, x: Tensor, y: Tensor) -> None:
        first = slice(len(x) // 2)
        second = slice(len(x) // 2, None)
        for train, validation in ((first, second), (second, first)):
            self._descend(
                self.validation_loss(net, (x[train], y[train]), (x[validation], y[validation]))
            )

    def _descend(self, value: Tensor) -> None:
        grads = torch.autograd.grad(value, list(self.mlp.parameters()))
        rate = (
            self.method.rate * self.optimizer.param_groups[0]["lr"] / self.optimizer.defaults["lr"]
        )
        set_learning_rate(self.adam, rate)
        for parameter, grad in zip(self.mlp.parameters(), grads, strict=True):
            parameter.grad = grad
        self.adam.step()

    def state(self) -> State:
        """Return the state for a checkpoint."""
        return {"mlp": self.mlp.state_dict(), "adam": self.adam.state_dict(), "steps": self.steps}

    def restore(self, state: State) -> None:
        """Continue from a state that `state` returned."""
        self.mlp.load_state_dict(state["mlp"])
        self.adam.load_state_dict(state["adam"])
        self.steps = state["steps"]


def exit_share_loss(logits: Tensor, y: Tensor, q: float) -> Tensor:
    """Return sum_i mean CE(f_i, y) over the examples that exit at i.

    Args:
        logits: [L, N, C].
        y: Labels [N].
        q: The share of examples of exit i is proportional to q^i. An exit without examples
            contributes 0.
    """
    shares = [q**k for k in range(1, len(logits) + 1)]
    assigned = assign_exits(logits.detach(), [share / sum(shares) for share in shares])
    counts = assigned.sum(1).clamp(min=1)
    return (torch.where(assigned, cross_entropy(logits, y), 0.0).sum(1) / counts).sum()


def assign_exits(logits: Tensor, shares: Sequence[float]) -> Tensor:
    """Assign each example to one exit.

    In order, each exit takes its share of all examples: the most confident ones among those that
    are not assigned yet. The last exit takes the rest.

    Args:
        logits: [L, N, C].
        shares: The share of each exit; the last one is not used.

    Returns:
        [L, N] bool.
    """
    confidence = logits.softmax(-1).amax(-1)  # [L, N]
    unassigned = torch.ones_like(confidence[0], dtype=torch.bool)
    assigned = []
    for sure, share in zip(confidence[:-1], shares, strict=False):
        count = math.floor(len(sure) * share)
        order = torch.where(unassigned, sure, -1.0).argsort(descending=True, stable=True)
        here = torch.zeros_like(unassigned).index_fill(0, order[:count], True) & unassigned
        assigned.append(here)
        unassigned = unassigned & ~here
    return torch.stack([*assigned, unassigned])


class _OneStepAhead(nn.Module):
    """A network after one gradient step, as a differentiable function of the loss of that step."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        self.current: dict[str, Tensor] = {
            name: p for name, p in net.named_parameters() if p.requires_grad
        }

    def step(self, loss: Tensor, rate: float) -> None:
        grads = torch.autograd.grad(
            loss, list(self.current.values()), create_graph=True, allow_unused=True
        )
        self.current = {
            name: p if grad is None else p.detach() - rate * grad
            for (name, p), grad in zip(self.current.items(), grads, strict=True)
        }

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack(list(functional_call(self.net, self.current, x)))
