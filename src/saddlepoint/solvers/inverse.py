"""The low-rank inverse Jacobian that Broyden's method builds, one per example."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Inverse:
    """B = -I + sum_k u_k v_k^T, an approximation of (df/dz - I)^-1 for each example.

    Good Broyden in its inverse form (Broyden 1965; Yang et al. 2022, Eq. 8): after a step dz that
    changed the residual by dg,

        v = B^T dz,   u = (dz - B dg) / (v^T dg),

    so that the secant equation B dg = dz is satisfied and B w is unchanged for every w orthogonal
    to v.
    """

    left: Tensor  # [N, K, D] u_k
    right: Tensor  # [N, K, D] v_k

    @classmethod
    def initial(cls, z: Tensor) -> Inverse:
        """-I for every row of z, [N, D]: the exact inverse where f does not depend on z."""
        none = z.new_zeros(len(z), 0, z.shape[1])
        return cls(none, none)

    def __len__(self) -> int:
        return len(self.left)

    def __getitem__(self, rows: Tensor) -> Inverse:
        return Inverse(self.left[rows], self.right[rows])

    @property
    def rank(self) -> int:
        """The number of terms K."""
        return self.left.shape[1]

    @property
    def transposed(self) -> Inverse:
        """B^T."""
        return Inverse(self.right, self.left)

    def matvec(self, g: Tensor) -> Tensor:
        """B g, [N, D] -> [N, D]."""
        return _low_rank(self.left, self.right, g) - g

    def rmatvec(self, g: Tensor) -> Tensor:
        """B^T g, [N, D] -> [N, D]."""
        return _low_rank(self.right, self.left, g) - g

    def dense(self) -> Tensor:
        """B as matrices, [N, D, D]."""
        return torch.einsum("nki,nkj->nij", self.left, self.right) - torch.eye(
            self.left.shape[2]
        ).to(self.left)

    def updated(self, dz: Tensor, dg: Tensor) -> Inverse:
        """Add the term of one more secant pair.

        A row gets a zero term where v^T dg is zero up to rounding, because u would be noise.

        Args:
            dz: the last step, [N, D].
            dg: the change of the residual f(z) - z in that step, [N, D].
        """
        v = self.rmatvec(dz)
        scale = (v * dg).sum(1, keepdim=True)  # dz^T B dg
        noise = (
            torch.finfo(dz.dtype).eps * v.norm(dim=1, keepdim=True) * dg.norm(dim=1, keepdim=True)
        )
        usable = scale.abs() > noise
        u = (dz - self.matvec(dg)) / torch.where(usable, scale, torch.ones_like(scale))
        u = torch.where(usable, u, torch.zeros_like(u))
        v = torch.where(usable, v, torch.zeros_like(v))
        return Inverse(
            torch.cat([self.left, u[:, None]], 1), torch.cat([self.right, v[:, None]], 1)
        )

    def first_terms(self, rank: int) -> Inverse:
        """The inverse with its first `rank` terms only: the one that was used at step `rank`."""
        return Inverse(self.left[:, :rank], self.right[:, :rank])

    def last_terms(self, rank: int) -> Inverse:
        """The inverse with its last `rank` terms only, which bounds the memory of long solves."""
        return Inverse(self.left[:, -rank:], self.right[:, -rank:]) if rank < self.rank else self

    def padded(self, rank: int) -> Inverse:
        """The same inverse with zero terms appended up to `rank` terms."""
        if rank <= self.rank:
            return self
        zeros = self.left.new_zeros(len(self), rank - self.rank, self.left.shape[2])
        return Inverse(torch.cat([self.left, zeros], 1), torch.cat([self.right, zeros], 1))


def _low_rank(left: Tensor, right: Tensor, g: Tensor) -> Tensor:
    """sum_k u_k (v_k^T g)."""
    return torch.einsum("nkd,nk->nd", left, torch.einsum("nkd,nd->nk", right, g))
