"""Adversarial training of equilibrium networks."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from saddlepoint.attack.loss import cross_entropy
from saddlepoint.attack.pgd import PGD
from saddlepoint.attack.space import Ball
from saddlepoint.coins import Coins
from saddlepoint.train.checkpoint import State
from saddlepoint.train.craft import craft
from saddlepoint.train.equilibrium import JacobianPenalty, Stack
from saddlepoint.zoo.deq import Solved

_DRAW, _PROBE = 3, 4  # coins apart from those of the adversary


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
            raise ValueError(f"EquilibriumTraining needs warmup >= 0 and layers >= 1, got {self.warmup} and {self.layers}.")

    def begin(self, exits: int, optimizer: torch.optim.Optimizer, seed: int) -> Warming:  # noqa: ARG002
        """One run of it."""
        return Warming(self)


class Warming:
    """A run that counts its steps, to know when the warm-up is over."""

    def __init__(self, method: EquilibriumTraining) -> None:
        self._method, self._steps = method, 0

    def loss(self, net: nn.Module, x: Tensor, y: Tensor, space: Ball, coins: Coins) -> Tensor:
        if not isinstance(net, Solved):
            raise TypeError(f"EquilibriumTraining trains a Solved network, got {type(net).__name__}. Wrap it: Solved(net).")
        self._steps += 1
        if self._steps <= self._method.warmup:
            return cross_entropy(Stack(net.net, self._method.layers)(x), y)
        return self._solved(net, x, y, space, coins)

    def _solved(self, net: Solved, x: Tensor, y: Tensor, space: Ball, coins: Coins) -> Tensor:
        method, penalty = self._method, self._method.penalty
        if method.attack is not None:
            x = craft(net, x, y, space, coins, method.attack)
        draw = penalty.draw(coins.fold(_DRAW))
        losses = cross_entropy(net.longer(draw.offset)(x), y)
        if not draw.penalised:
            return losses
        u, z = net.longer(draw.offset).equilibrium(x)
        return losses + penalty(net.net.cell, z, u, coins.fold(_PROBE))

    def state(self) -> State:
        return {"steps": self._steps}

    def restore(self, state: State) -> None:
        self._steps = state["steps"]
