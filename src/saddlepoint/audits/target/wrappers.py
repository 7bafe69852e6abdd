"""Wrappers that prepare a target for attacks without changing its predictions."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from saddlepoint.defenses import Context, Defense, DefenseWrapper, Plain, Trace, View
from saddlepoint.gradients.rule import straight_through


class TargetWrapper(DefenseWrapper):
    """A target prepared for attacks: the same predictions, without what hides its gradients."""

    def __init__(self, inner: Defense) -> None:
        super().__init__(inner)
        if isinstance(inner, Plain):  # a plain net is not the static net of a defense
            self.static = None


class LogProbabilities(TargetWrapper):
    """The logarithm of the outputs of a net that returns probabilities p.

    softmax(log p) = p, so predictions stay the same, and a loss does not apply a second softmax.
    """

    replaces_views: ClassVar[bool] = True

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        p = self.inner.trace(x, ctx).last
        return Trace((View("final", p.clamp(min=torch.finfo(p.dtype).tiny).log()),))

    def answer(self, trace: Trace, ctx: Context) -> Tensor:  # noqa: ARG002
        return trace.last


class NoGradient(TargetWrapper):
    """A defense without gradients: it declares `grants` = "score"."""

    def __init__(self, inner: Defense) -> None:
        super().__init__(inner)
        self.grants = "score"


class ValueWithoutGrad(TargetWrapper):
    """Values of a call without gradients, gradients of a call with them.

    For a target that computes other outputs when gradients are enabled. The result is BPDA around
    the whole target (Athalye et al. 2018, Sec. 4.1): the differentiable call is the surrogate.
    """

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        if not torch.is_grad_enabled():
            return self.inner.trace(x, ctx)
        surrogate = self.inner.trace(x, ctx)
        with torch.no_grad():
            true = self.inner.trace(x.detach(), Context(ctx.keys, keep=ctx.keep))
        views = []
        for approximate, exact in zip(surrogate.views, true.views, strict=True):
            views.append(View(exact.name, _with_gradient(approximate.logits, exact.logits)))
        return Trace(tuple(views))


def _with_gradient(surrogate: Tensor, value: Tensor) -> Tensor:
    """`value` with the gradient of `surrogate`, if that has one."""
    return straight_through(surrogate, value) if surrogate.requires_grad else value


def connected(trace: Trace, x: Tensor) -> Trace:
    """The same values, with a gradient of zero where no gradient reaches the images.

    Surrogates that were found on a few images may not apply to others. Attacks then continue
    without a direction, and the diagnostics of their gradients report it.

    Args:
        trace: logits [N, C] of each view.
        x: images, [N, ...].
    """
    if not (torch.is_grad_enabled() and x.requires_grad):
        return trace
    zero = 0 * x.flatten(1).sum(1, keepdim=True)  # [N, 1]
    return Trace(tuple(View(view.name, view.logits + zero) for view in trace.views))
