"""Training methods: what each example's loss is. They differ in nothing else, so one loop trains with any of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from saddlepoint.attacks.losses import Loss, cross_entropy
from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import Ball
from saddlepoint.rng import Keys
from saddlepoint.training.checkpoint import State
from saddlepoint.training.inner_attack import craft, evaluating


class Method(Protocol):
    """A per-example loss of the network in the mode it is in; the loop takes its mean.

    Of a network that answers [L, N, C], the losses here are [L, N]: see `OverExits`.
    """

    def loss(
        self, net: nn.Module, x: Tensor, y: Tensor, space: Ball, keys: Keys
    ) -> Tensor: ...  # [N]


@runtime_checkable
class Learner(Method, Protocol):
    """A method in the course of one run, with what it learns beside the network's weights."""

    def state(self) -> State: ...
    def restore(self, state: State) -> None: ...


@runtime_checkable
class Learning(Protocol):
    """A method that learns: each run begins one of its own, for a network of so many exits."""

    def begin(self, exits: int, optimizer: torch.optim.Optimizer, seed: int) -> Learner: ...


@dataclass(frozen=True)
class Standard:
    """CE(f(x), y): no adversary."""

    def loss(self, net: nn.Module, x: Tensor, y: Tensor, space: Ball, keys: Keys) -> Tensor:  # noqa: ARG002
        return cross_entropy(net(x), y)


@dataclass(frozen=True)
class PGDTraining:
    """CE(f(x'), y) with x' = argmax CE over the set, by PGD (Madry et al. 2018)."""

    attack: PGD = field(default_factory=lambda: PGD(steps=10))

    def loss(self, net: nn.Module, x: Tensor, y: Tensor, space: Ball, keys: Keys) -> Tensor:
        return cross_entropy(net(craft(net, x, y, space, keys, self.attack)), y)


@dataclass(frozen=True)
class HalfAdversarial:
    """CE(f(x), y) on the first half of each batch, CE(f(x'), y) on the second, x' by PGD; one pass sees both.

    How transductive adversarial training trains (Chen et al. 2022, A.5).
    """

    attack: PGD = field(default_factory=lambda: PGD(steps=10))

    def loss(self, net: nn.Module, x: Tensor, y: Tensor, space: Ball, keys: Keys) -> Tensor:
        half = len(x) // 2
        rows = torch.arange(half, len(x), device=x.device)
        attacked = craft(net, x[rows], y[rows], space, keys[rows], self.attack)
        return cross_entropy(net(torch.cat([x[:half], attacked])), y)


@dataclass(frozen=True)
class TRADES:
    """CE(f(x), y) + beta KL(p(x) || p(x')) with x' = argmax KL over the set (Zhang et al. 2019).

    PGD starts anywhere in the set, where the original starts beside x (0.001 times normal noise): at x itself KL has no slope.
    """

    beta: float = 6.0
    attack: PGD = field(default_factory=lambda: PGD(steps=10))

    def __post_init__(self) -> None:
        _refuse_negative("TRADES", "beta", self.beta)

    def loss(self, net: nn.Module, x: Tensor, y: Tensor, space: Ball, keys: Keys) -> Tensor:
        with evaluating(net), torch.no_grad():
            anchor = net(x)
        adversarial = craft(net, x, y, space, keys, self.attack, loss=_divergence_from(anchor))
        clean = net(x)
        return cross_entropy(clean, y) + self.beta * divergence(clean, net(adversarial))


@dataclass(frozen=True)
class MART:
    """BCE(p(x'), y) + weight KL(p(x) || p(x')) (1 - p_y(x)), x' = argmax CE over the set (Wang et al. 2020).

    BCE(p, y) = -log p_y - log(1 - max_{k != y} p_k) also pushes the strongest wrong class down. The factor 1 - p_y(x) spends the
    regularizer on examples that are wrong to begin with; the gradient flows through it, as in the released code.
    """

    weight: float = 5.0
    attack: PGD = field(default_factory=lambda: PGD(steps=10))

    def __post_init__(self) -> None:
        _refuse_negative("MART", "weight", self.weight)

    def loss(self, net: nn.Module, x: Tensor, y: Tensor, space: Ball, keys: Keys) -> Tensor:
        attacked = net(craft(net, x, y, space, keys, self.attack))
        clean = net(x)
        doubt = 1 - (-cross_entropy(clean, y)).exp()
        return (
            boosted_cross_entropy(attacked, y) + self.weight * divergence(clean, attacked) * doubt
        )


@dataclass(frozen=True)
class FAT:
    """CE(f(x'), y) with x' from PGD stopped `tau` steps after it first succeeds: friendly adversaries (Zhang et al. 2020).

    The original lets tau grow while it trains; here it stays. With tau >= steps this is PGD training.
    """

    tau: int = 1
    attack: PGD = field(default_factory=lambda: PGD(steps=10))

    def __post_init__(self) -> None:
        _refuse_negative("FAT", "tau", self.tau)

    def loss(self, net: nn.Module, x: Tensor, y: Tensor, space: Ball, keys: Keys) -> Tensor:
        return cross_entropy(net(craft(net, x, y, space, keys, self.attack, tau=self.tau)), y)


@dataclass(frozen=True)
class FastTraining:
    """CE(f(x'), y) with one step x' = project(x_0 + step radius ascent(grad CE(f(x_0), y))) from x_0 uniform in the set.

    FGSM-RS, Wong et al. 2020.
    """

    step: float = 1.25  # in units of the radius

    def loss(self, net: nn.Module, x: Tensor, y: Tensor, space: Ball, keys: Keys) -> Tensor:
        attack = PGD(steps=1, step_size=self.step * space.radius)
        return cross_entropy(net(craft(net, x, y, space, keys, attack)), y)


def divergence(from_logits: Tensor, to_logits: Tensor) -> Tensor:
    """KL(p || q) = sum_k p_k (log p_k - log q_k), per example; never negative."""
    log_p = from_logits.log_softmax(-1)
    log_q = to_logits.log_softmax(-1)
    return (log_p.exp() * (log_p - log_q)).sum(-1)


def boosted_cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """-log p_y - log(1 - p_k), k the strongest other class.

    1 - p_k is summed over the classes other than k, so it never rounds to 0; the released code adds 0.0001 to it instead.
    """
    strongest = logits.scatter(-1, y.expand(logits.shape[:-1]).unsqueeze(-1), -torch.inf).argmax(
        -1, keepdim=True
    )
    rest = logits.scatter(-1, strongest, -torch.inf).logsumexp(-1)
    return cross_entropy(logits, y) + logits.logsumexp(-1) - rest


def _divergence_from(anchor: Tensor) -> Loss:
    return lambda logits, y: divergence(anchor, logits)  # noqa: ARG005


def _refuse_negative(method: str, field_name: str, value: float) -> None:
    if not value >= 0:
        raise ValueError(f"{method} needs {field_name} >= 0, got {field_name}={value}.")
