"""An adaptive defense, presented to the attack as an ordinary network."""

from __future__ import annotations

import torch
from torch import Tensor

from saddlepoint.defenses import Context, Defense, Trace


class AdaptInForward(Defense):
    """Adapts the inner defense to its input in every forward pass, without gradients.

    This is how AutoAttack was run on DENT (DENT-AA, Chen et al. 2022, Table 2). The class declares
    the examples of a batch to be independent, which is not true. An attack that drops misclassified
    examples from the batch therefore changes the adapted model at every step.

    Use it only to reproduce numbers that were measured in this way, as the source of a transfer
    attack.

    Args:
        inner: the defense that adapts.
    """

    def __init__(self, inner: Defense) -> None:
        self.inner = inner
        self.static = inner.static

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        """Views of the inner defense adapted to `x`; the gradient passes through the views only."""
        with torch.no_grad():
            adapted = self.inner.adapt(x.detach(), ctx)
        return adapted.trace(x, ctx)
