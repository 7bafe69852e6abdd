"""Targets in the guise in which attacks meet them: the same answers, with what stood in the way of an attack taken out."""

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
    """log p of a net that answers with probabilities: softmax(log p) = p, so no answer changes and no loss saturates twice."""

    replaces_views: ClassVar[bool] = True

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        p = self.inner.trace(x, ctx).last
        return Trace((View("final", p.clamp(min=torch.finfo(p.dtype).tiny).log()),))

    def answer(self, trace: Trace, ctx: Context) -> Tensor:  # noqa: ARG002
        return trace.last


class NoGradient(TargetWrapper):
    """A defense whose gradients cannot be had, seen through its answers."""

    def __init__(self, inner: Defense) -> None:
        super().__init__(inner)
        self.grants = "score"


class ValueWithoutGrad(TargetWrapper):
    """A defense that cannot tell an attacker from a user: values come from a call without gradients, slopes from one with them.

    BPDA around the whole (Athalye et al. 2018, Sec. 4.1): what the target shows to who differentiates it stands in for it.
    """

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        if not torch.is_grad_enabled():
            return self.inner.trace(x, ctx)
        shown = self.inner.trace(x, ctx)
        with torch.no_grad():
            asked = self.inner.trace(x.detach(), Context(ctx.keys, keep=ctx.keep))
        pairs = zip(shown.views, asked.views, strict=True)
        return Trace(
            tuple(View(true.name, _standing_in(view.logits, true.logits)) for view, true in pairs)
        )


def _standing_in(shown: Tensor, true: Tensor) -> Tensor:
    return straight_through(shown, true) if shown.requires_grad else true
