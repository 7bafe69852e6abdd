"""What every equilibrium network is made of, whoever solves it."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Equilibrium(Protocol):
    """logits = head(z*) with z* = cell(z*, u), u = inject(x) (Bai et al. 2019).

    `cell` is a pure function of (z, u): whatever is drawn for a forward pass, such as a dropout mask, is drawn by `inject` and is
    part of u. A solver may therefore call it as often and in whatever order it likes, on any subset of the rows, and again in a
    backward pass.
    """

    def inject(self, x: Tensor) -> Tensor: ...  # [N, ...] -> [N, K], once per forward pass
    def start(self, u: Tensor) -> Tensor: ...  # [N, D] zeros
    def cell(self, z: Tensor, u: Tensor) -> Tensor: ...  # [N, D], [N, K] -> [N, D]
    def head(self, z: Tensor) -> Tensor: ...  # [N, D] -> [N, C]
