"""The neural ODE of SODEF and its numerical integration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol, cast

import torch
from torch import Tensor, nn
from torchdiffeq import odeint

Field = Callable[[Tensor], Tensor]  # dz/dt at z, [N, D] -> [N, D]; independent of time


class Integrator(Protocol):
    """Solves dz/dt = field(z)."""

    @property
    def coupled(self) -> bool:
        """Whether the result of a row depends on the other rows of the batch."""

    def __call__(self, field: Field, z: Tensor, time: float) -> Tensor:
        """Return z(time) [N, D], given z(0) = z [N, D]."""


@dataclass(frozen=True)
class Dopri5:
    """Method of order 5 with adaptive step sizes (Dormand & Prince 1980).

    The error estimate is a mean over the whole batch. The rows therefore share their step sizes,
    and an output changes within the tolerance when other rows are removed. With `per_example`
    every row is solved on its own, which takes as many solves as there are rows.
    """

    tolerance: float = 1e-3  # relative and absolute
    per_example: bool = False

    @property
    def coupled(self) -> bool:
        """Whether rows share their step sizes."""
        return not self.per_example

    def __call__(self, field: Field, z: Tensor, time: float) -> Tensor:
        """Return z(time) [N, D], given z(0) = z [N, D]."""
        batches = torch.tensor_split(z, len(z)) if self.per_example else (z,)
        return torch.cat([self._solve(field, batch, time) for batch in batches])

    def _solve(self, field: Field, z: Tensor, time: float) -> Tensor:
        return _integrate(field, z, z.new_tensor([0.0, time]), "dopri5", self.tolerance)


@dataclass(frozen=True)
class RungeKutta:
    """Kutta's 3/8 rule of order 4 with equal steps.

    Rows are independent, and the result is one smooth function of the input.
    """

    steps: int = 20

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"RungeKutta needs steps >= 1, got steps={self.steps}.")

    @property
    def coupled(self) -> bool:
        """Always False: rows are independent."""
        return False

    def __call__(self, field: Field, z: Tensor, time: float) -> Tensor:
        """Return z(time) [N, D], given z(0) = z [N, D]."""
        grid = torch.linspace(0.0, time, self.steps + 1, dtype=z.dtype, device=z.device)
        return _integrate(field, z, grid, "rk4", 0.0)


def _integrate(field: Field, z: Tensor, times: Tensor, method: str, tolerance: float) -> Tensor:
    states = odeint(
        lambda t, state: field(state),  # noqa: ARG005
        z,
        times,
        rtol=tolerance,
        atol=tolerance,
        method=method,
    )
    return cast(Tensor, states[-1])


class SineField(nn.Module):
    """f(z) = sin(-A_3 sin(-A_2 sin(-A_1 z))) with affine maps A.

    Args:
        width: Dimension of z; 64 in the released code.
        hidden: Widths of the hidden layers; (256, 256) in the released code.
    """

    def __init__(self, width: int = 64, hidden: Sequence[int] = (256, 256)) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise([width, *hidden, width]))

    def forward(self, z: Tensor) -> Tensor:
        """Return dz/dt at z [N, D]."""
        for layer in self.layers:
            z = torch.sin(-layer(z))
        return z


class StableODE(nn.Module):
    """The modules that SODEF adds to a network's features.

    z(0) = embed(features), dz/dt = field(z), logits = head(z(time)). The released WRN-70-16 has an
    orthogonal linear map to 64 dimensions as `embed`, and `SineField(64, ())`.

    Args:
        embed: [N, F] -> [N, D].
        field: [N, D] -> [N, D].
        head: [N, D] -> [N, C].
    """

    def __init__(self, embed: nn.Module, field: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.embed = embed
        self.field = field
        self.head = head

    @classmethod
    def over(cls, features: int, classes: int, *, width: int = 64, hidden: int = 2048) -> StableODE:
        """Build the released modules: two tanh layers, the sine field and one linear layer.

        Args:
            features: Dimension F of the features.
            classes: Number of classes C.
            width: Dimension D of the ODE.
            hidden: Width of the embedding's hidden layer.
        """
        embed = nn.Sequential(
            nn.Linear(features, hidden), nn.Tanh(), nn.Linear(hidden, width), nn.Tanh()
        )
        return cls(embed, SineField(width), nn.Linear(width, classes))
