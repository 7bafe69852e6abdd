"""Training methods: each defines the per-example loss. The training loop is the same for all."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from saddlepoint.attacks.losses import Loss, cross_entropy
from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import Ball
from saddlepoint.defenses import eval_mode
from saddlepoint.rng import Keys
from saddlepoint.training.checkpoint import State
from saddlepoint.training.inner_attack import adversarial_examples


class Method(Protocol):
    """A per-example training loss; the training loop takes its mean.

    For a network with output [L, N, C] the losses of the methods in this module are [L, N]. See
    `OverExits`.
    """

    def loss(self, net: nn.Module, x: Tensor, y: Tensor, space: Ball, keys: Keys) -> Tensor:
        """Return the loss [N] of each example; the network stays in its current mode.

        Args:
            net: The network, [N, ...] -> [N, C].
            x: Examples [N, ...].
            y: Labels [N].
            space: The perturbation set.
            keys: Random keys [N].
        """
        ...


@runtime_checkable
class MethodRun(Method, Protocol):
    """A method within one training run, with its own state beside the weights of the network."""

    def state(self) -> State:
        """Return the state for a checkpoint."""
        ...

    def restore(self, state: State) -> None:
        """Continue from a state that `state` returned."""
        ...


@runtime_checkable
class StatefulMethod(Protocol):
    """A method that keeps state while it trains: every training run begins a new `MethodRun`."""

    def begin(self, exits: int, optimizer: torch.optim.Optimizer, seed: int) -> MethodRun:
        """Begin a run.

        Args:
            exits: Number of exits of the network.
            optimizer: The optimizer of the network.
            seed: Decides everything that the method draws.
        """
        ...


@runtime_checkable
class ScheduledMethod(Protocol):
    """A method that changes during training."""

    def at(self, done: float) -> Method:
        """Return the method when the share 0 <= done < 1 of the training is done."""
        ...


@dataclass(frozen=True)
class Standard:
    """Standard training: CE(f(x), y), without an attack."""

    def loss(
        self,
        net: nn.Module,
        x: Tensor,
        y: Tensor,
        space: Ball,  # noqa: ARG002
        keys: Keys,  # noqa: ARG002
    ) -> Tensor:
        return cross_entropy(net(x), y)


@dataclass(frozen=True)
class PGDTraining:
    """CE(f(x'), y) with x' = argmax CE over the perturbation set, by PGD (Madry et al. 2018)."""

    attack: PGD = field(default_factory=lambda: PGD(steps=10))

    def loss(self, net: nn.Module, x: Tensor, y: Tensor, space: Ball, keys: Keys) -> Tensor:
        return cross_entropy(net(adversarial_examples(net, x, y, space, keys, self.attack)), y)


@dataclass(frozen=True)
class HalfAdversarial:
    """CE(f(x), y) on the first half of a batch and CE(f(x'), y) on the second half, x' by PGD.

    Both halves share one forward pass. Transductive adversarial training uses this loss (Chen et
    al. 2022, A.5).
    """

    attack: PGD = field(default_factory=lambda: PGD(steps=10))

    def loss(self, net: nn.Module, x: Tensor, y: Tensor, space: Ball, keys: Keys) -> Tensor:
        half = len(x) // 2
        rows = torch.arange(half, len(x), device=x.device)
        attacked = adversarial_examples(net, x[rows], y[rows], space, keys[rows], self.attack)
        return cross_entropy(net(torch.cat([x[:half], attacked])), y)


@dataclass(frozen=True)
class TRADES:
    """CE(f(x), y) + beta KL(p(x) || p(x')) with x' = argmax KL over the set (Zhang et al. 2019).

    PGD starts anywhere in the set. The original starts at x plus 0.001 times normal noise. Some
    offset is needed because the gradient of KL is zero at x itself.
    """

    beta: float = 6.0
    attack: PGD = field(default_factory=lambda: PGD(steps=10))

    def __post_init__(self) -> None:
        _check_not_negative("TRADES", "beta", self.beta)

    def loss(self, net: nn.Module, x: Tensor, y: Tensor, space: Ball, keys: Keys) -> Tensor:
        with eval_mode(net), torch.no_grad():
            clean_logits = net(x)
        attacked = adversarial_examples(
            net, x, y, space, keys, self.attack, loss=_divergence_from(clean_logits)
        )
        clean = net(x)
        return cross_entropy(clean, y) + self.beta * divergence(clean, net(attacked))


@dataclass(frozen=True)
class MART:
    """BCE(p(x'), y) + weight KL(p(x) || p(x')) (1 - p_y(x)), x' = argmax CE (Wang et al. 2020).

    BCE(p, y) = -log p_y - log(1 - max_{k != y} p_k) also lowers the probability of the strongest
    wrong class. The factor 1 - p_y(x) puts the weight of the regularizer on examples that are
    misclassified without an attack. The gradient flows through it, as in the released code.
    """

    weight: float = 5.0
    attack: PGD = field(default_factory=lambda: PGD(steps=10))

    def __post_init__(self) -> None:
        _check_not_negative("MART", "weight", self.weight)

    def loss(self, net: nn.Module, x: Tensor, y: Tensor, space: Ball, keys: Keys) -> Tensor:
        attacked = net(adversarial_examples(net, x, y, space, keys, self.attack))
        clean = net(x)
        error = 1 - (-cross_entropy(clean, y)).exp()  # 1 - p_y(x)
        return (
            boosted_cross_entropy(attacked, y) + self.weight * divergence(clean, attacked) * error
        )


@dataclass(frozen=True)
class GrowingTau:
    """A number of steps that grows during training.

    The defaults are those of the released code of FAT, which trains for 120 epochs: 0 up to epoch
    50, 1 up to epoch 90, then 2.
    """

    values: tuple[int, ...] = (0, 1, 2)
    changes: tuple[float, ...] = (50 / 120, 90 / 120)  # shares of the training, increasing

    def __post_init__(self) -> None:
        if len(self.values) != len(self.changes) + 1 or list(self.changes) != sorted(self.changes):
            raise ValueError(
                "GrowingTau needs one value more than increasing changes, got values "
                f"{self.values} and changes {self.changes}."
            )

    def at(self, done: float) -> int:
        """Return the value when the share 0 <= done < 1 of the training is done."""
        return self.values[sum(done >= change for change in self.changes)]


@dataclass(frozen=True)
class FAT:
    """Friendly adversarial training: CE(f(x'), y) with early-stopped PGD (Zhang et al. 2020).

    PGD stops `tau` steps after it first succeeds. By default tau grows during training, as in the
    released code; `at` gives the method at one time. The loss of a method with a growing tau is
    that of the start of the training. With tau >= steps this is PGD training.
    """

    tau: int | GrowingTau = field(default_factory=GrowingTau)
    attack: PGD = field(default_factory=lambda: PGD(steps=10))

    def __post_init__(self) -> None:
        values = self.tau.values if isinstance(self.tau, GrowingTau) else (self.tau,)
        for value in values:
            _check_not_negative("FAT", "tau", value)

    def at(self, done: float) -> FAT:
        if isinstance(self.tau, GrowingTau):
            return replace(self, tau=self.tau.at(done))
        return self

    def loss(self, net: nn.Module, x: Tensor, y: Tensor, space: Ball, keys: Keys) -> Tensor:
        tau = self.tau.at(0.0) if isinstance(self.tau, GrowingTau) else self.tau
        attacked = adversarial_examples(net, x, y, space, keys, self.attack, tau=tau)
        return cross_entropy(net(attacked), y)


@dataclass(frozen=True)
class FastTraining:
    """FGSM-RS: CE(f(x'), y) with a single gradient step from a random start (Wong et al. 2020).

    x' = project(x_0 + step radius ascent(grad CE(f(x_0), y))) with x_0 uniform in the set.
    """

    step: float = 1.25  # in units of the radius

    def loss(self, net: nn.Module, x: Tensor, y: Tensor, space: Ball, keys: Keys) -> Tensor:
        attack = PGD(steps=1, step_size=self.step * space.radius)
        return cross_entropy(net(adversarial_examples(net, x, y, space, keys, attack)), y)


def divergence(from_logits: Tensor, to_logits: Tensor) -> Tensor:
    """Return KL(p || q) = sum_k p_k (log p_k - log q_k) per example.

    Args:
        from_logits: Logits [..., N, C] of p.
        to_logits: Logits [..., N, C] of q.
    """
    log_p = from_logits.log_softmax(-1)
    log_q = to_logits.log_softmax(-1)
    return (log_p.exp() * (log_p - log_q)).sum(-1)


def boosted_cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """Return -log p_y - log(1 - p_k) per example, where k is the strongest class other than y.

    1 - p_k is computed as a sum over the classes other than k, so it never rounds to 0. The
    released code adds 0.0001 to it instead.

    Args:
        logits: [..., N, C].
        y: Labels [N].
    """
    strongest = logits.scatter(-1, y.expand(logits.shape[:-1]).unsqueeze(-1), -torch.inf).argmax(
        -1, keepdim=True
    )
    rest = logits.scatter(-1, strongest, -torch.inf).logsumexp(-1)
    return cross_entropy(logits, y) + logits.logsumexp(-1) - rest


def _divergence_from(clean_logits: Tensor) -> Loss:
    return lambda logits, y: divergence(clean_logits, logits)  # noqa: ARG005


def _check_not_negative(method: str, field_name: str, value: float) -> None:
    if not value >= 0:
        raise ValueError(f"{method} needs {field_name} >= 0, got {field_name}={value}.")
