"""The neural ODE of SODEF and how it is integrated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol, cast

import torch
from torch import Tensor, nn
from torchdiffeq import odeint

Field = Callable[[Tensor], Tensor]  # dz/dt at z, [N, D] -> [N, D]; time does not enter


class Integrator(Protocol):
    """z(time) of dz/dt = field(z) from z(0)."""

    @property
    def coupled(self) -> bool: ...  # does one row's result depend on the others?
    def __call__(self, field: Field, z: Tensor, time: float) -> Tensor: ...


@dataclass(frozen=True)
class Dopri5:
    """Dormand & Prince 1980, order 5 with steps sized by an error estimate.

    The estimate is a mean over the whole batch, so rows choose each other's steps and answers move within the tolerance when batch
    mates leave. With `per_example` every row is solved alone: as many solves as rows.
    """

    tolerance: float = 1e-3  # relative and absolute
    per_example: bool = False

    @property
    def coupled(self) -> bool:
        return not self.per_example

    def __call__(self, field: Field, z: Tensor, time: float) -> Tensor:
        rows = torch.tensor_split(z, len(z)) if self.per_example else (z,)
        return torch.cat([self._solved(field, row, time) for row in rows])

    def _solved(self, field: Field, z: Tensor, time: float) -> Tensor:
        return _integrated(field, z, z.new_tensor([0.0, time]), "dopri5", self.tolerance)


@dataclass(frozen=True)
class RungeKutta:
    """Kutta's 3/8 rule, order 4, with equal steps: row by row, and the same function of its input whatever that is."""

    steps: int = 20

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"RungeKutta needs steps >= 1, got steps={self.steps}.")

    @property
    def coupled(self) -> bool:
        return False

    def __call__(self, field: Field, z: Tensor, time: float) -> Tensor:
        grid = torch.linspace(0.0, time, self.steps + 1, dtype=z.dtype, device=z.device)
        return _integrated(field, z, grid, "rk4", 0.0)


def _integrated(field: Field, z: Tensor, times: Tensor, method: str, tolerance: float) -> Tensor:
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
    """f(z) = sin(-A_3 sin(-A_2 sin(-A_1 z))), each A an affine map: 64 -> 256 -> 256 -> 64 in the released code."""

    def __init__(self, width: int = 64, hidden: Sequence[int] = (256, 256)) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise([width, *hidden, width]))

    def forward(self, z: Tensor) -> Tensor:
        for layer in self.layers:
            z = torch.sin(-layer(z))
        return z


class StableODE(nn.Module):
    """What SODEF puts on the features: z(0) = embed(features), dz/dt = field(z), logits = head(z(time)).

    Any modules will do. The released WRN-70-16 has an orthogonal linear map to 64 as `embed`, and `SineField(64, ())`.
    """

    def __init__(self, embed: nn.Module, field: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.embed = embed
        self.field = field
        self.head = head

    @classmethod
    def over(cls, features: int, classes: int, *, width: int = 64, hidden: int = 2048) -> StableODE:
        """The released parts: two tanh layers down to `width`, the sine field, one linear layer to the classes."""
        embed = nn.Sequential(
            nn.Linear(features, hidden), nn.Tanh(), nn.Linear(hidden, width), nn.Tanh()
        )
        return cls(embed, SineField(width), nn.Linear(width, classes))
