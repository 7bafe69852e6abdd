"""Batch normalization by the statistics of the test batch."""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn

from saddlepoint.defenses import Context, Defense, Trace, View
from saddlepoint.zoo.adaptive.validation import require_eval_mode
from saddlepoint.zoo.transductive.normalization import AdjustableNet, BatchNorm


class CovariateShiftAdaptation(Defense):
    """Replace the statistics of batch normalization by those of the test batch, then classify.

    y = weight (h - m) / sqrt(v + eps) + bias with the mean m and the variance v of the batch in
    every batch normalization. Attacked images shift these statistics away from those of training
    (Nandy et al. 2021, for adversarially trained networks). The view "static" has the statistics of
    training, and "adapted" those of the batch, which couple its images: control of several
    images is also control of their statistics.

    Args:
        net: Classifier with batch normalization, in eval mode.
        prior: The statistics of training count as this many images; default none.

    Raises:
        ValueError: If the network is in training mode or has no batch normalization.
    """

    coupled = True

    def __init__(self, net: nn.Module, *, prior: float = 0.0) -> None:
        require_eval_mode(net, role="network", owner="CovariateShiftAdaptation")
        if prior < 0:
            raise ValueError(f"CovariateShiftAdaptation needs prior >= 0, got prior={prior}.")
        self.net = net
        self.prior = prior
        self.static = net
        self.adapted = AdjustableNet(net, partial(BatchNorm, prior=prior))

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        """Return the logits with the statistics of training and with those of the batch."""
        views = [View("static", self.net(x))] if ctx.keeps("static") else []
        return Trace((*views, View("adapted", self.adapted(x, self.adapted.parameters))))
