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
from saddlepoint.training.inner_attack import adversarial_examples
from saddlepoint.zoo.deq.jacobian_penalty import UNPENALIZED, JacobianPenalty
from saddlepoint.zoo.deq.solved import Solved
from saddlepoint.zoo.nets.equilibrium import Equilibrium

# Folded into the random keys. The attack uses 1 and 2, so these draws are independent of it.
_DRAW = 3
_PROBE = 4


class Stack(nn.Module):
    """An equilibrium network as a plain network of k weight-tied layers.

    The output is head(z_k) with z_{i+1} = f(z_i; x), z_0 = 0. The parameters are shared with `net`,
    so training one trains the other. The released code of Yang, Pang & Liu 2022 starts this way: 8
    layers, no solver and no attack for the first 16 000 steps.

    Args:
        net: The equilibrium network.
        layers: Number k of layers, at least 1.

    Raises:
        ValueError: `layers` is below 1.
    """

    def __init__(self, net: Equilibrium, layers: int = 8) -> None:
        super().__init__()
        if layers < 1:
            raise ValueError(f"Stack needs at least one layer, got layers={layers}.")
        self.net = net
        self.layers = layers

    def forward(self, x: Tensor) -> Tensor:
        u = self.net.inject(x)
        z = self.net.start(u)
        for _ in range(self.layers):
            z = self.net.cell(z, u)
        return self.net.head(z)


@dataclass(frozen=True)
class EquilibriumTraining:
    """Adversarial training of a `Solved` network after a warm-up (Yang et al. 2022).

    The loss is CE(f(x'), y) with x' = argmax CE over the perturbation set, by PGD. For the first
    `warmup` steps the network is trained on clean images, without a solver, as a `Stack` of
    `layers` cells. After that it is solved. The attack runs in eval mode and uses the same gradient
    rule as training. In random steps the Jacobian `penalty` at the equilibria is added to the loss,
    and the solver runs a few steps more or fewer.

    This is the recipe of the released code. Its warm-up takes 16 000 steps; the paper does not
    mention it.
    """

    # None: train on clean images after the warm-up as well.
    attack: PGD | None = field(default_factory=lambda: PGD(steps=10))
    warmup: int = 16_000  # training steps
    layers: int = 8  # of the stack
    penalty: JacobianPenalty = field(default_factory=JacobianPenalty)
    # Training steps after which there is no penalty, warm-up included; None: it never ends. The
    # released code stops after 90 epochs of 521 steps.
    penalty_until: int | None = 46_890

    def __post_init__(self) -> None:
        if self.warmup < 0 or self.layers < 1:
            raise ValueError(
                f"EquilibriumTraining needs warmup >= 0 and layers >= 1, got {self.warmup} and "
                f"{self.layers}."
            )

    def begin(
        self,
        exits: int,  # noqa: ARG002
        optimizer: torch.optim.Optimizer,  # noqa: ARG002
        seed: int,  # noqa: ARG002
    ) -> EquilibriumTrainingRun:
        """Begin a training run. The arguments are not used."""
        return EquilibriumTrainingRun(self)


class EquilibriumTrainingRun:
    """One training run; it counts its steps to know when the warm-up ends."""

    def __init__(self, method: EquilibriumTraining) -> None:
        self._method = method
        self._steps = 0

    def loss(self, net: nn.Module, x: Tensor, y: Tensor, space: Ball, keys: Keys) -> Tensor:
        """Return the loss [N] of each example.

        Raises:
            TypeError: `net` is not a `Solved` network.
        """
        if not isinstance(net, Solved):
            raise TypeError(
                f"EquilibriumTraining trains a Solved network, got {type(net).__name__}. "
                "Wrap it: Solved(net)."
            )
        self._steps += 1
        if self._steps <= self._method.warmup:
            return cross_entropy(Stack(net.net, self._method.layers)(x), y)
        return self._loss_at_equilibrium(net, x, y, space, keys)

    def _loss_at_equilibrium(
        self, net: Solved, x: Tensor, y: Tensor, space: Ball, keys: Keys
    ) -> Tensor:
        attack = self._method.attack
        penalty = self._method.penalty
        if attack is not None:
            x = adversarial_examples(net, x, y, space, keys, attack)
        draw = penalty.draw(keys.fold_in(_DRAW)) if self._penalizes else UNPENALIZED
        losses = cross_entropy(net.with_extra_steps(draw.offset)(x), y)
        if not draw.penalized:
            return losses
        u, z = net.with_extra_steps(draw.offset).equilibrium(x)
        return losses + penalty(net.net.cell, z, u, keys.fold_in(_PROBE))

    @property
    def _penalizes(self) -> bool:
        until = self._method.penalty_until
        return until is None or self._steps <= until

    def state(self) -> State:
        """Return the state for a checkpoint."""
        return {"steps": self._steps}

    def restore(self, state: State) -> None:
        """Continue from a state that `state` returned."""
        self._steps = state["steps"]
