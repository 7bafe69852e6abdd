"""The Jacobian penalty, which keeps equilibrium networks solvable while they are trained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from saddlepoint.rng import Keys

Cell = Callable[[Tensor, Tensor], Tensor]  # (z [N, D], u [N, K]) -> [N, D]


class Draw(NamedTuple):
    """The random choices of one training step."""

    penalized: bool  # whether the penalty is added to the loss of this step
    offset: int  # added to the number of solver steps; 0 if the step is not penalized


UNPENALIZED = Draw(penalized=False, offset=0)


@dataclass(frozen=True)
class JacobianPenalty:
    """weight ||df/dz||_F^2 / D at a state z, added in random steps (Bai, Koltun & Kolter 2021).

    The norm is estimated with random probes. In a penalized training step the solver also runs a
    few steps more or fewer. The defaults are those of the released code of Yang, Pang & Liu 2022.
    """

    weight: float = 0.4
    probability: float = 0.02  # that a training step is penalized
    probes: int = 2  # random vectors per example
    offsets: tuple[int, ...] = (-2, -1, 0, 1)  # changes of the number of solver steps

    def __post_init__(self) -> None:
        if not (
            self.weight >= 0 and 0 <= self.probability <= 1 and self.probes >= 1 and self.offsets
        ):
            raise ValueError(
                "JacobianPenalty needs weight >= 0, 0 <= probability <= 1, probes >= 1 and at "
                f"least one offset, got {self}."
            )

    def draw(self, keys: Keys) -> Draw:
        """Draw once for the whole batch, because its rows share one solver setting."""
        batch_key = Keys.of(keys.batch_seed(), torch.zeros(1))
        if not bool(batch_key.uniform((), torch.float64) < self.probability):
            return UNPENALIZED
        choice = int(batch_key.fold_in(1).integers(len(self.offsets)))
        return Draw(penalized=True, offset=self.offsets[choice])

    def __call__(self, cell: Cell, z: Tensor, u: Tensor, keys: Keys) -> Tensor:
        """Return the penalty [N].

        Args:
            cell: The function f; the penalty is on its Jacobian.
            z: States [N, D].
            u: Injected features [N, K].
            keys: Random keys [N] for the probes.
        """
        return self.weight * mean_square_jacobian(cell, z, u, keys, self.probes)


def mean_square_jacobian(cell: Cell, z: Tensor, u: Tensor, keys: Keys, probes: int = 2) -> Tensor:
    """Estimate ||J||_F^2 / D per example, where J = df/dz at (z, u).

    The estimate is (1 / D) mean_k ||v_k^T J||^2 with v_k standard normal. It is unbiased, since
    E ||v^T J||^2 = tr(J^T E[v v^T] J) = ||J||_F^2 (Hutchinson 1989). The released code of Yang,
    Pang & Liu 2022 divides by the batch size and by D at once, which is the batch mean of this.

    Args:
        cell: f, which maps (z, u) to [N, D]. Its rows must be independent.
        z: States [N, D]. The result is not differentiable in z.
        u: Injected features [N, K]. The result is differentiable in u and in the cell's weights.
        keys: Random keys [N] for the probes.
        probes: Number of vectors v_k per example.

    Returns:
        [N].
    """
    with torch.enable_grad():
        z = z.detach().requires_grad_()
        f = cell(z, u)
        # Each row draws its probes from its own key. Rows of a cell are independent, so one
        # product computes v^T J for all rows.
        parts = [
            _squared_product(f, z, keys.fold_in(k).normal((z.shape[1],), z.dtype))
            for k in range(probes)
        ]
    return torch.stack(parts).mean(0) / z.shape[1]


def _squared_product(f: Tensor, z: Tensor, v: Tensor) -> Tensor:  # [N]
    (product,) = torch.autograd.grad(f, z, v, create_graph=True)
    return product.square().sum(1)
