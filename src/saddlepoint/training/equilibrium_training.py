"""Adversarial training of equilibrium networks."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from saddlepoint.attacks.losses import cross_entropy
from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import Ball
from saddlepoint.rng import Keys
from saddlepoint.training.checkpoint import State
from saddlepoint.training.equilibrium import JacobianPenalty, Stack
from saddlepoint.training.inner_attack import craft
from saddlepoint.zoo.deq import Solved

_DRAW = 3
_PROBE = 4  # coins apart from those of the adversary


@dataclass(frozen=True)
class EquilibriumTraining:
    """CE(f(x'), y) of a `Solved` network, x' = argmax CE over the set by PGD, after a warm-up without solver (Yang et al. 2022).

    For the first `warmup` steps the network is trained on clean images as a stack of `layers` cells with the same weights. Then it
    is solved, and adversaries climb the gradient that training descends, in eval mode. Now and then a step also pays the Jacobian
    `penalty` at its equilibria, with a solver that makes a few steps more or fewer. All this is the released code's recipe, which
    warms up for 16 000 steps; the paper does not mention the warm-up. Without `attack` training goes on with clean images.
    """

    attack: PGD | None = field(default_factory=lambda: PGD(steps=10))
    warmup: int = 16_000  # steps
    layers: int = 8
    penalty: JacobianPenalty = field(default_factory=JacobianPenalty)

    def __post_init__(self) -> None:
        if self.warmup < 0 or self.layers < 1:
            raise ValueError(
                f"EquilibriumTraining needs warmup >= 0 and layers >= 1, got {self.warmup} and {self.layers}."
            )

    def begin(self, exits: int, optimizer: torch.optim.Optimizer, seed: int) -> Warming:  # noqa: ARG002
        """One run of it."""
        return Warming(self)


class Warming:
    """A run that counts its steps, to know when the warm-up is over."""

    def __init__(self, method: EquilibriumTraining) -> None:
        self._method = method
        self._steps = 0

    def loss(self, net: nn.Module, x: Tensor, y: Tensor, space: Ball, keys: Keys) -> Tensor:
        if not isinstance(net, Solved):
            raise TypeError(
                f"EquilibriumTraining trains a Solved network, got {type(net).__name__}. Wrap it: Solved(net)."
            )
        self._steps += 1
        if self._steps <= self._method.warmup:
            return cross_entropy(Stack(net.net, self._method.layers)(x), y)
        return self._solved(net, x, y, space, keys)

    def _solved(self, net: Solved, x: Tensor, y: Tensor, space: Ball, keys: Keys) -> Tensor:
        method = self._method
        penalty = self._method.penalty
        if method.attack is not None:
            x = craft(net, x, y, space, keys, method.attack)
        draw = penalty.draw(keys.fold_in(_DRAW))
        losses = cross_entropy(net.longer(draw.offset)(x), y)
        if not draw.penalized:
            return losses
        u, z = net.longer(draw.offset).equilibrium(x)
        return losses + penalty(net.net.cell, z, u, keys.fold_in(_PROBE))

    def state(self) -> State:
        return {"steps": self._steps}

    def restore(self, state: State) -> None:
        self._steps = state["steps"]
