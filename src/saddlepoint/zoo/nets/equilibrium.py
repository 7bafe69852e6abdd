"""The interface of an equilibrium network, independent of the solver."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Equilibrium(Protocol):
    """logits = head(z*) with z* = cell(z*, u), u = inject(x) (Bai et al. 2019).

    `cell` is a pure function of (z, u). Everything random in a forward pass, such as a dropout
    mask, is drawn by `inject` and is part of u. A solver may therefore call `cell` any number of
    times, on any subset of the rows, and again in a backward pass.
    """

    def inject(self, x: Tensor) -> Tensor:
        """Return the injected features u, [N, ...] -> [N, K]; called once per forward pass."""
        ...

    def start(self, u: Tensor) -> Tensor:
        """Return the initial state, zeros [N, D], for u [N, K]."""
        ...

    def cell(self, z: Tensor, u: Tensor) -> Tensor:
        """Apply the cell once, [N, D] and [N, K] -> [N, D]."""
        ...

    def head(self, z: Tensor) -> Tensor:
        """Return the logits of a state, [N, D] -> [N, C]."""
        ...
