"""Pieces for training equilibrium networks: the stack that warms them up, and the penalty that keeps them solvable."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from saddlepoint.rng import Keys
from saddlepoint.zoo.nets import Equilibrium

Cell = Callable[[Tensor, Tensor], Tensor]


class Stack(nn.Module):
    """head(z_k), z_{i+1} = f(z_i; x), z_0 = 0: an equilibrium network as a plain one of k layers with the same weights.

    It shares its parameters with `net`, so that training one trains the other. Yang, Pang & Liu 2022 start so in their released
    code: 8 layers, no solver and no adversary for the first 16 000 steps.
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


class Draw(NamedTuple):
    """What one training step drew."""

    penalized: bool  # does this step pay the penalty?
    offset: int  # to be added to the solver's steps; 0 where it does not


@dataclass(frozen=True)
class JacobianPenalty:
    """weight ||df/dz||_F^2 / D at a state z, estimated and paid now and then (Bai, Koltun & Kolter 2021).

    Defaults are those of the released code of Yang, Pang & Liu 2022. A training step that pays it also runs the solver for a few
    steps more or fewer.
    """

    weight: float = 0.4
    probability: float = 0.02  # per training step
    probes: int = 2
    offsets: tuple[int, ...] = (-2, -1, 0, 1)

    def __post_init__(self) -> None:
        if not (
            self.weight >= 0 and 0 <= self.probability <= 1 and self.probes >= 1 and self.offsets
        ):
            raise ValueError(
                f"JacobianPenalty needs weight >= 0, a probability, probes >= 1 and offsets, got {self}."
            )

    def draw(self, keys: Keys) -> Draw:
        """One draw for the whole batch, whose rows share a solver."""
        lot = Keys.of(keys.batch_seed(), torch.zeros(1))
        penalized = bool(lot.uniform((), torch.float64) < self.probability)
        return Draw(
            penalized,
            self.offsets[int(lot.fold_in(1).integers(len(self.offsets)))] if penalized else 0,
        )

    def __call__(self, cell: Cell, z: Tensor, u: Tensor, keys: Keys) -> Tensor:  # [N]
        return self.weight * mean_square_jacobian(cell, z, u, keys, self.probes)


def mean_square_jacobian(cell: Cell, z: Tensor, u: Tensor, keys: Keys, probes: int = 2) -> Tensor:
    """[N] (1 / D) mean_k ||v_k^T J||^2 with J = df/dz at (z, u), v_k standard normal: its expectation is ||J||_F^2 / D.

    E ||v^T J||^2 = tr(J^T E[v v^T] J) = ||J||_F^2 (Hutchinson 1989). Differentiable in the cell's weights and in u, not in z. The
    mean over a batch is what the released code divides by the batch's size and by D at once.
    """
    with torch.enable_grad():
        z = z.detach().requires_grad_()
        f = cell(z, u)
        # Each row's probes come from its own coins; rows of a cell are independent, so that one product serves them all.
        parts = [
            _squared_product(f, z, keys.fold_in(k).normal((z.shape[1],), z.dtype))
            for k in range(probes)
        ]
    return torch.stack(parts).mean(0) / z.shape[1]


def _squared_product(f: Tensor, z: Tensor, v: Tensor) -> Tensor:  # [N]
    (product,) = torch.autograd.grad(f, z, v, create_graph=True)
    return product.square().sum(1)
