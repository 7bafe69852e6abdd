"""Weights of examples and exits that are learned while the network is trained: L2W-DEN."""

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
from saddlepoint.training.inner_attack import craft
from saddlepoint.training.multi_exit_view import Stacked


@dataclass(frozen=True)
class LearnedWeights:
    """sum_i w_i CE_i, with w = 1 + spread (v - mean v) and v = tanh(MLP(CE_1 .. CE_L)) per example (Han et al. 2022).

    Easy examples leave early, hard ones late, and each should count most where it leaves. Every `interval` steps one half of the
    batch trains and the other judges, then the reverse: theta' = theta - rate grad sum_i mean(w_i CE_i) on the one; on the other
    each exit takes its share of the examples, those it is surest of, and the cross-entropy of theta' where they leave, summed over
    exits, moves the MLP. The share of exit i is in proportion to q^i.

    As in the released code, the mean of v is over the whole batch, and the rate of the MLP follows the network's schedule. There
    theta' also has momentum and weight decay, and the network takes a step per half; here it takes one per batch.
    """

    hidden: int = 500  # units of the MLP's one layer
    spread: float = 0.3
    q: float = 0.75  # the released code counts in twentieths: its index 15
    rate: float = 1e-4  # of the MLP's Adam
    weight_decay: float = 1e-4  # likewise
    interval: int = 100
    attack: PGD | None = None  # where given, all this happens at the points of the average attack

    def __post_init__(self) -> None:
        if self.q <= 0 or self.interval < 1 or not 0 <= self.spread <= 1:
            raise ValueError(
                "LearnedWeights needs q > 0, interval >= 1 and 0 <= spread <= 1, "
                f"got q={self.q}, interval={self.interval} and spread={self.spread}."
            )

    def begin(self, exits: int, optimizer: torch.optim.Optimizer, seed: int) -> LearningWeights:
        """One run of it, for a network of so many exits that this optimizer trains."""
        parameter = optimizer.param_groups[0]["params"][0]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            mlp = nn.Sequential(
                nn.Linear(exits, self.hidden), nn.ReLU(), nn.Linear(self.hidden, exits), nn.Tanh()
            )
        return LearningWeights(self, mlp.to(parameter), optimizer)


class LearningWeights:
    """A run: the MLP, its Adam and the number of steps taken."""

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
        if self.method.attack is not None:
            x = craft(net, x, y, space, keys, self.method.attack)
        if (
            self.steps % self.method.interval == 0 and len(x) >= 4
        ):  # batch norm needs two examples in each half
            middle = len(x) // 2
            for train, judge in (
                (slice(middle), slice(middle, None)),
                (slice(middle, None), slice(middle)),
            ):
                self._descend(self.judged(net, (x[train], y[train]), (x[judge], y[judge])))
        self.steps += 1
        losses = cross_entropy(Stacked(net)(x), y)  # [L, N]
        return (self.weights(losses).detach() * losses).sum(0)

    def weights(self, losses: Tensor) -> Tensor:
        """[L, N] of mean 1, given losses [L, N]."""
        v: Tensor = self.mlp(losses.detach().T).T
        return 1 + self.method.spread * (v - v.mean())

    def judged(
        self, net: nn.Module, train: tuple[Tensor, Tensor], judge: tuple[Tensor, Tensor]
    ) -> Tensor:
        """What the network, one step on from here, loses on the judging half: a function of the MLP that weighted the step."""
        ahead = _Ahead(
            copy.deepcopy(net)
        )  # the passes of a copy leave no mark on running statistics
        losses = cross_entropy(Stacked(ahead)(train[0]), train[1])
        ahead.step(
            (self.weights(losses) * losses).mean(1).sum(), self.optimizer.param_groups[0]["lr"]
        )
        return leaving_loss(Stacked(ahead)(judge[0]), judge[1], self.method.q)

    def _descend(self, value: Tensor) -> None:
        grads = torch.autograd.grad(value, list(self.mlp.parameters()))
        for group in self.adam.param_groups:
            group["lr"] = (
                self.method.rate
                * self.optimizer.param_groups[0]["lr"]
                / self.optimizer.defaults["lr"]
            )
        for parameter, grad in zip(self.mlp.parameters(), grads, strict=True):
            parameter.grad = grad
        self.adam.step()

    def state(self) -> State:
        return {"mlp": self.mlp.state_dict(), "adam": self.adam.state_dict(), "steps": self.steps}

    def restore(self, state: State) -> None:
        self.mlp.load_state_dict(state["mlp"])
        self.adam.load_state_dict(state["adam"])
        self.steps = state["steps"]


def leaving_loss(logits: Tensor, y: Tensor, q: float) -> Tensor:
    """sum_i mean CE(f_i, y) over the examples that leave at exit i; exits at which nobody leaves count nothing."""
    shares = [q**k for k in range(1, len(logits) + 1)]
    leaves = leaving(logits.detach(), [share / sum(shares) for share in shares])
    counts = leaves.sum(1).clamp(min=1)
    return (torch.where(leaves, cross_entropy(logits, y), 0.0).sum(1) / counts).sum()


def leaving(logits: Tensor, shares: Sequence[float]) -> Tensor:
    """[L, N] bool of logits [L, N, C]: each exit takes its share of all, the surest of those still there; the last one the rest."""
    confidence = logits.softmax(-1).amax(-1)  # [L, N]
    left = torch.ones_like(confidence[0], dtype=torch.bool)
    taken = []
    for sure, share in zip(confidence[:-1], shares, strict=False):
        count = math.floor(len(sure) * share)
        order = torch.where(left, sure, -1.0).argsort(descending=True, stable=True)
        here = torch.zeros_like(left).index_fill(0, order[:count], True) & left
        taken.append(here)
        left = left & ~here
    return torch.stack([*taken, left])


class _Ahead(nn.Module):
    """A network that has taken one step, with the way back to what decided the step."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        self.now: dict[str, Tensor] = {
            name: p for name, p in net.named_parameters() if p.requires_grad
        }

    def step(self, loss: Tensor, rate: float) -> None:
        grads = torch.autograd.grad(
            loss, list(self.now.values()), create_graph=True, allow_unused=True
        )
        self.now = {
            name: p if grad is None else p.detach() - rate * grad
            for (name, p), grad in zip(self.now.items(), grads, strict=True)
        }

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack(list(functional_call(self.net, self.now, x)))
