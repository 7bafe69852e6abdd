"""Three ways to a fixed point: Picard, Anderson, Broyden."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from saddlepoint.solvers.inverse import Inverse
from saddlepoint.solvers.solver import Solver


@dataclass(frozen=True, kw_only=True)
class Picard(Solver):
    """z_{n+1} = (1 - damping) z_n + damping f(z_n). On u = J^T u + c from 0, undamped, these are the partial sums of Neumann."""

    damping: float = 1.0

    def begin(self, z: Tensor, f: Tensor, inverse: Inverse | None) -> _Damped:  # noqa: ARG002
        return _Damped(z, f, self.damping)


@dataclass(frozen=True)
class _Damped:
    z: Tensor
    f: Tensor
    damping: float
    inverse: None = None

    def propose(self) -> Tensor:
        # Undamped is f itself: z + (f - z) would round.
        return self.f if self.damping == 1 else (1 - self.damping) * self.z + self.damping * self.f

    def observe(self, z: Tensor, f: Tensor) -> _Damped:
        return replace(self, z=z, f=f)

    def __getitem__(self, rows: Tensor) -> _Damped:
        return replace(self, z=self.z[rows], f=self.f[rows])


@dataclass(frozen=True, kw_only=True)
class Anderson(Solver):
    """z_{n+1} = z_n + damping g_n - (dZ + damping dG) a,  a = argmin ||g_n - dG a||,  g = f(z) - z, over the last `memory` steps.

    Anderson 1965, in the difference form of Walker & Ni 2011. The least squares are normal equations with a ridge at
    rounding level, so that repeated directions do no harm.
    """

    memory: int = 5
    damping: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.memory < 1:
            raise ValueError(f"Anderson remembers at least one step, got memory={self.memory}.")

    def begin(self, z: Tensor, f: Tensor, inverse: Inverse | None) -> _Mixing:  # noqa: ARG002
        none = z.new_zeros(len(z), 0, z.shape[1])
        return _Mixing(z, f - z, none, none, self.memory, self.damping)


@dataclass(frozen=True)
class _Mixing:
    z: Tensor
    g: Tensor
    dz: Tensor  # [M, k, D]
    dg: Tensor  # [M, k, D]
    memory: int
    damping: float
    inverse: None = None

    def propose(self) -> Tensor:
        z = self.z + self.damping * self.g
        if not self.dg.shape[1]:
            return z
        gram: Tensor = self.dg @ self.dg.mT  # [M, k, k]
        level = (
            gram.diagonal(dim1=1, dim2=2).sum(1).clamp(min=torch.finfo(gram.dtype).tiny)
            * torch.finfo(gram.dtype).eps
        )
        ridge = level[:, None, None] * torch.eye(gram.shape[1]).to(gram)
        a = torch.linalg.solve(gram + ridge, self.dg @ self.g[:, :, None])  # [M, k, 1]
        return z - torch.einsum("mkd,mk->md", self.dz + self.damping * self.dg, a[:, :, 0])

    def observe(self, z: Tensor, f: Tensor) -> _Mixing:
        g = f - z
        dz = torch.cat([self.dz, (z - self.z)[:, None]], 1)[:, -self.memory :]
        dg = torch.cat([self.dg, (g - self.g)[:, None]], 1)[:, -self.memory :]
        return replace(self, z=z, g=g, dz=dz, dg=dg)

    def __getitem__(self, rows: Tensor) -> _Mixing:
        return replace(self, z=self.z[rows], g=self.g[rows], dz=self.dz[rows], dg=self.dg[rows])


@dataclass(frozen=True, kw_only=True)
class Broyden(Solver):
    """z_{n+1} = z_n - step_size B_n g_n,  g = f(z) - z,  with B_n the low-rank inverse of `Inverse` (Yang et al. 2022, Eq. 7-8).

    From B_0 = -I the first full step is z_1 = f(z_0). Each step adds a term to B, so that memory grows with steps unless all but
    the last few are forgotten; rules that look back at B_n need them all.
    """

    step_size: float = 1.0
    memory: int | None = None  # terms of B that are remembered; None: all

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.memory is not None and self.memory < 1:
            raise ValueError(f"Broyden remembers at least one step, got memory={self.memory}.")

    @property
    def forgets(self) -> bool:
        return self.memory is not None and self.memory < self.steps

    def begin(self, z: Tensor, f: Tensor, inverse: Inverse | None) -> _Secants:
        return _Secants(
            z, f - z, Inverse.start(z) if inverse is None else inverse, self.step_size, self.memory
        )


@dataclass(frozen=True)
class _Secants:
    z: Tensor
    g: Tensor
    inverse: Inverse
    step_size: float
    memory: int | None

    def propose(self) -> Tensor:
        return self.z - self.step_size * self.inverse.matvec(self.g)

    def observe(self, z: Tensor, f: Tensor) -> _Secants:
        g = f - z
        inverse = self.inverse.updated(z - self.z, g - self.g)
        return replace(
            self, z=z, g=g, inverse=inverse if self.memory is None else inverse.latest(self.memory)
        )

    def __getitem__(self, rows: Tensor) -> _Secants:
        return replace(self, z=self.z[rows], g=self.g[rows], inverse=self.inverse[rows])
