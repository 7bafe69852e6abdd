"""Losses that turn the features of training examples into stable equilibria of an ODE."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from saddlepoint.phrases import agree, count
from saddlepoint.rng import Keys


@dataclass(frozen=True)
class Stability:
    """Weights of the three terms of the stability loss.

    rest mean_i (50 f_i)^2 + slope mean_i exp(J_ii + 1)
    + dominance mean_j exp((sum_{i != j} |J_ij| - |J_jj| + 1) / 10)

    at z = z(0) of a training example, with J = df/dz (Kang et al. 2021, in the form and with the
    constants of the released code; its WRN-70-16 has rest 0.1 and dominance 0). The first term
    makes z an equilibrium. The second and third make the diagonal of J negative and larger in
    absolute value than the rest of its column. By Gershgorin's theorem all eigenvalues then have a
    negative real part, and the equilibrium attracts its neighborhood.
    """

    rest: float = 0.2
    slope: float = 10.0
    dominance: float = 10.0

    def loss(self, field: Callable[[Tensor], Tensor], z: Tensor) -> Tensor:
        """Return the loss [N] of a field f: [N, D] -> [N, D] at z [N, D]."""
        rest = (50 * field(z)).square().mean(1)
        jacobian = jacobians(field, z)  # [N, D, D]
        diagonal = jacobian.diagonal(dim1=1, dim2=2)  # [N, D]
        # [N, D]: absolute column sums without the diagonal, minus the diagonal
        excess = jacobian.abs().sum(1) - 2 * diagonal.abs()
        slope = (diagonal + 1).exp().mean(1)
        dominance = ((excess + 1) / 10).exp().mean(1)
        return self.rest * rest + self.slope * slope + self.dominance * dominance


def jacobians(field: Callable[[Tensor], Tensor], z: Tensor) -> Tensor:
    """Return the Jacobians df_i/dz_j of each row, [N, D, D]."""
    per_row: Tensor = torch.func.vmap(torch.func.jacrev(field))(z)
    return per_row


def simplex(classes: int, width: int, seed: int = 0) -> Tensor:
    """Return one unit vector per class, as far apart as possible, randomly rotated.

    Any two vectors have cosine -1 / (classes - 1). Features are first trained toward these
    vectors, so that the equilibria of different classes are far apart. The released code maximizes
    the smallest distance numerically; for at most as many classes as dimensions the regular
    simplex attains the maximum.

    Args:
        classes: Number of vectors, 2 <= classes <= width.
        width: Dimension.
        seed: Seed of the rotation.

    Returns:
        [classes, width], float64.

    Raises:
        ValueError: If the vectors do not fit into the dimension.
    """
    if not 2 <= classes <= width:
        raise ValueError(
            f"{count(classes, 'class')} {agree(classes, 'does', 'do')} not form a simplex in "
            f"{count(width, 'dimension')}. Give the ODE a larger width."
        )
    centered = torch.eye(classes, dtype=torch.float64) - 1 / classes
    corners = centered * (classes / (classes - 1)) ** 0.5
    gaussian = Keys.of(seed, torch.arange(width)).normal((width,), torch.float64)
    rotation = torch.linalg.qr(gaussian)[0]
    rotated: Tensor = corners @ rotation[:classes]
    return rotated
