"""Three methods for fixed points: Picard, Anderson and Broyden."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from saddlepoint.solvers.inverse import Inverse
from saddlepoint.solvers.solver import Solver


@dataclass(frozen=True, kw_only=True)
class Picard(Solver):
    """Damped fixed-point iteration: z_{n+1} = (1 - damping) z_n + damping f(z_n).

    On the linear equation u = J^T u + c from u_0 = 0, undamped, the iterates are the partial sums
    of the Neumann series.

    Args:
        steps: most steps per example, at least 1; default 50.
        tolerance: an example stops when its residual is below this; default 1e-3.
        relative: the residual is ||f(z) - z|| / ||f(z)|| (default) instead of ||f(z) - z||.
        divergence: an example stops when ||f(z) - z|| exceeds this many times the scale of its
            start; default 1e3.
        batch_coupled: use one stopping rule for the whole batch, see `Solver`; default False.
        damping: weight of the new value f(z_n); default 1, undamped.
    """

    damping: float = 1.0

    def first_iterate(
        self,
        z: Tensor,
        f: Tensor,
        inverse: Inverse | None,  # noqa: ARG002
    ) -> _PicardIterate:
        return _PicardIterate(z, f, self.damping)


@dataclass(frozen=True)
class _PicardIterate:
    z: Tensor  # [M, D]
    f: Tensor  # [M, D] f(z)
    damping: float
    inverse: None = None

    def next_state(self) -> Tensor:
        # Undamped, return f itself: z + (f - z) would round.
        return self.f if self.damping == 1 else (1 - self.damping) * self.z + self.damping * self.f

    def updated(self, z: Tensor, f: Tensor) -> _PicardIterate:
        return replace(self, z=z, f=f)

    def __getitem__(self, rows: Tensor) -> _PicardIterate:
        return replace(self, z=self.z[rows], f=self.f[rows])


@dataclass(frozen=True, kw_only=True)
class Anderson(Solver):
    """Anderson acceleration over the last `memory` steps. With the residual g = f(z) - z,

        z_{n+1} = z_n + damping g_n - (dZ + damping dG) a,   a = argmin ||g_n - dG a||,

    where the columns of dZ and dG are the last differences of states and residuals. Anderson 1965,
    in the difference form of Walker & Ni 2011. The least-squares problem is solved by normal
    equations with a ridge at rounding level, so that repeated directions do not make it singular.

    Args:
        steps: most steps per example, at least 1; default 50.
        tolerance: an example stops when its residual is below this; default 1e-3.
        relative: the residual is ||f(z) - z|| / ||f(z)|| (default) instead of ||f(z) - z||.
        divergence: an example stops when ||f(z) - z|| exceeds this many times the scale of its
            start; default 1e3.
        batch_coupled: use one stopping rule for the whole batch, see `Solver`; default False.
        memory: how many differences are used, at least 1; default 5.
        damping: weight of the residual in a step; default 1, undamped.
    """

    memory: int = 5
    damping: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.memory < 1:
            raise ValueError(f"Anderson needs memory >= 1, got memory={self.memory}.")

    def first_iterate(
        self,
        z: Tensor,
        f: Tensor,
        inverse: Inverse | None,  # noqa: ARG002
    ) -> _AndersonIterate:
        none = z.new_zeros(len(z), 0, z.shape[1])
        return _AndersonIterate(z, f - z, none, none, self.memory, self.damping)


@dataclass(frozen=True)
class _AndersonIterate:
    z: Tensor  # [M, D]
    g: Tensor  # [M, D] f(z) - z
    dz: Tensor  # [M, k, D] differences of states
    dg: Tensor  # [M, k, D] differences of residuals
    memory: int
    damping: float
    inverse: None = None

    def next_state(self) -> Tensor:
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

    def updated(self, z: Tensor, f: Tensor) -> _AndersonIterate:
        g = f - z
        dz = torch.cat([self.dz, (z - self.z)[:, None]], 1)[:, -self.memory :]
        dg = torch.cat([self.dg, (g - self.g)[:, None]], 1)[:, -self.memory :]
        return replace(self, z=z, g=g, dz=dz, dg=dg)

    def __getitem__(self, rows: Tensor) -> _AndersonIterate:
        return replace(self, z=self.z[rows], g=self.g[rows], dz=self.dz[rows], dg=self.dg[rows])


@dataclass(frozen=True, kw_only=True)
class Broyden(Solver):
    """Broyden's method with a low-rank inverse per example (Yang et al. 2022, Eq. 7-8).

        z_{n+1} = z_n - step_size B_n g_n,   g = f(z) - z,

    where B_n is the `Inverse`. From B_0 = -I the first full step is z_1 = f(z_0). Each step adds a
    term to B, so memory grows with the number of steps unless `memory` limits the terms. Gradient
    rules that use B_n need all terms.

    Args:
        steps: most steps per example, at least 1; default 50.
        tolerance: an example stops when its residual is below this; default 1e-3.
        relative: the residual is ||f(z) - z|| / ||f(z)|| (default) instead of ||f(z) - z||.
        divergence: an example stops when ||f(z) - z|| exceeds this many times the scale of its
            start; default 1e3.
        batch_coupled: use one stopping rule for the whole batch, see `Solver`; default False.
        step_size: length of a step relative to the full quasi-Newton step; default 1.
        memory: how many of the last terms of B are kept, at least 1; default None, all.
    """

    step_size: float = 1.0
    memory: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.memory is not None and self.memory < 1:
            raise ValueError(f"Broyden needs memory >= 1 or None, got memory={self.memory}.")

    @property
    def truncates_inverse(self) -> bool:
        return self.memory is not None and self.memory < self.steps

    def first_iterate(self, z: Tensor, f: Tensor, inverse: Inverse | None) -> _BroydenIterate:
        start = Inverse.initial(z) if inverse is None else inverse
        return _BroydenIterate(z, f - z, start, self.step_size, self.memory)


@dataclass(frozen=True)
class _BroydenIterate:
    z: Tensor  # [M, D]
    g: Tensor  # [M, D] f(z) - z
    inverse: Inverse
    step_size: float
    memory: int | None

    def next_state(self) -> Tensor:
        return self.z - self.step_size * self.inverse.matvec(self.g)

    def updated(self, z: Tensor, f: Tensor) -> _BroydenIterate:
        g = f - z
        inverse = self.inverse.updated(z - self.z, g - self.g)
        if self.memory is not None:
            inverse = inverse.last_terms(self.memory)
        return replace(self, z=z, g=g, inverse=inverse)

    def __getitem__(self, rows: Tensor) -> _BroydenIterate:
        return replace(self, z=self.z[rows], g=self.g[rows], inverse=self.inverse[rows])
