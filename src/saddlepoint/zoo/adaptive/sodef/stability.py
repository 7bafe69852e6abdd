"""The losses that make features equilibria, and stable ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from saddlepoint.rng import Keys


@dataclass(frozen=True)
class Stability:
    """rest mean_i (50 f_i)^2 + slope mean_i exp(J_ii + 1) + dominance mean_j exp((sum_{i != j} |J_ij| - |J_jj| + 1) / 10).

    At z = z(0) of a training example, with J = df/dz (Kang et al. 2021, in the form and with the constants of the released code;
    its WRN-70-16 has rest 0.1 and dominance 0). The first term makes z an equilibrium; the second and third make the diagonal of J
    negative and larger than the rest of its column, so that by Gershgorin all eigenvalues have negative real part and the
    equilibrium attracts its neighborhood.
    """

    rest: float = 0.2
    slope: float = 10.0
    dominance: float = 10.0

    def loss(self, field: Callable[[Tensor], Tensor], z: Tensor) -> Tensor:  # [N]
        rest = (50 * field(z)).square().mean(1)
        jacobian = jacobians(field, z)  # [N, D, D]
        diagonal = jacobian.diagonal(dim1=1, dim2=2)  # [N, D]
        column = (
            jacobian.abs().sum(1) - 2 * diagonal.abs()
        )  # [N, D]: off the diagonal, less the diagonal
        slope = (diagonal + 1).exp().mean(1)
        dominance = ((column + 1) / 10).exp().mean(1)
        return self.rest * rest + self.slope * slope + self.dominance * dominance


def jacobians(field: Callable[[Tensor], Tensor], z: Tensor) -> Tensor:
    """[N, D, D]: df_i/dz_j for each row."""
    rows: Tensor = torch.func.vmap(torch.func.jacrev(field))(z)
    return rows


def simplex(classes: int, width: int, seed: int = 0) -> Tensor:
    """[classes, width], float64: unit vectors as far apart as can be, any two at cosine -1 / (classes - 1), turned by the seed.

    Features are first trained towards these, so that the equilibria of different classes lie apart. The released code maximizes the
    least distance numerically; for no more classes than dimensions the regular simplex attains the maximum.
    """
    if not 2 <= classes <= width:
        raise ValueError(
            f"{classes} classes cannot be placed as a simplex in {width} dimensions. Give the ODE a larger width."
        )
    centerd = torch.eye(classes, dtype=torch.float64) - 1 / classes
    corners = centerd * (classes / (classes - 1)) ** 0.5
    turn = torch.linalg.qr(Keys.of(seed, torch.arange(width)).normal((width,), torch.float64))[0]
    turned: Tensor = corners @ turn[:classes]
    return turned
