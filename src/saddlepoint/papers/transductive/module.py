"""A defense that adapts, taken for a network."""

from __future__ import annotations

import torch
from torch import Tensor

from saddlepoint.defenses import Context, Defense, Trace


class Module(Defense):
    """Adapts inside the forward pass to whatever rows it is given, and lets no gradient through that: DENT as AutoAttack met it.

    It declares its rows independent, which they are not: an attack that drops the fallen then meets another defense at every step.
    For comparisons with figures that were found in this way (DENT-AA of Chen et al. 2022, Table 2), as a source of transfers only.
    """

    def __init__(self, inner: Defense) -> None:
        self.inner = inner
        self.static = inner.static

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        with torch.no_grad():
            adapted = self.inner.adapt(x.detach(), ctx)
        return adapted.trace(x, ctx)
