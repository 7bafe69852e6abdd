"""The low-rank inverse that Broyden's method builds, one per example."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Inverse:
    """B = -I + sum_k u_k v_k^T, an approximation of (df/dz - I)^-1 for each row.

    Good Broyden in its inverse form (Broyden 1965; Yang et al. 2022, Eq. 8): after a step dz that changed the residual by dg,
    v = B^T dz,  u = (dz - B dg) / (v^T dg),  so that the secant equation B dg = dz holds and nothing changes across dz.
    """

    left: Tensor  # [N, K, D] u_k
    right: Tensor  # [N, K, D] v_k

    @classmethod
    def start(cls, z: Tensor) -> Inverse:
        """-I for the rows of z [N, D]: the inverse of a map that forgets its state."""
        none = z.new_zeros(len(z), 0, z.shape[1])
        return cls(none, none)

    def __len__(self) -> int:
        return len(self.left)

    def __getitem__(self, rows: Tensor) -> Inverse:
        return Inverse(self.left[rows], self.right[rows])

    @property
    def rank(self) -> int:
        return self.left.shape[1]

    @property
    def transposed(self) -> Inverse:
        return Inverse(self.right, self.left)

    def matvec(self, g: Tensor) -> Tensor:  # [N, D] -> [N, D]
        """B g."""
        return _low_rank(self.left, self.right, g) - g

    def rmatvec(self, g: Tensor) -> Tensor:
        """B^T g."""
        return _low_rank(self.right, self.left, g) - g

    def dense(self) -> Tensor:  # [N, D, D]
        return torch.einsum("nki,nkj->nij", self.left, self.right) - torch.eye(
            self.left.shape[2]
        ).to(self.left)

    def updated(self, dz: Tensor, dg: Tensor) -> Inverse:
        """The inverse that knows one more secant pair; a row whose pair says nothing keeps the one it had."""
        v = self.rmatvec(dz)
        scale = (v * dg).sum(1, keepdim=True)  # dz^T B dg
        noise = (
            torch.finfo(dz.dtype).eps * v.norm(dim=1, keepdim=True) * dg.norm(dim=1, keepdim=True)
        )
        telling = scale.abs() > noise
        u = (dz - self.matvec(dg)) / torch.where(telling, scale, torch.ones_like(scale))
        u = torch.where(telling, u, torch.zeros_like(u))
        v = torch.where(telling, v, torch.zeros_like(v))
        return Inverse(
            torch.cat([self.left, u[:, None]], 1), torch.cat([self.right, v[:, None]], 1)
        )

    def first(self, rank: int) -> Inverse:
        """What it was when it had this many terms."""
        return Inverse(self.left[:, :rank], self.right[:, :rank])

    def latest(self, rank: int) -> Inverse:
        """Its last terms only: what a long walk can afford to remember."""
        return Inverse(self.left[:, -rank:], self.right[:, -rank:]) if rank < self.rank else self

    def padded(self, rank: int) -> Inverse:
        """The same inverse written with more terms, all zero."""
        more = self.left.new_zeros(len(self), rank - self.rank, self.left.shape[2])
        return (
            Inverse(torch.cat([self.left, more], 1), torch.cat([self.right, more], 1))
            if rank > self.rank
            else self
        )


def _low_rank(left: Tensor, right: Tensor, g: Tensor) -> Tensor:
    """sum_k u_k (v_k^T g)."""
    return torch.einsum("nkd,nk->nd", left, torch.einsum("nkd,nd->nk", right, g))
