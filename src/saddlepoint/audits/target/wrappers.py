"""Targets in the guise in which attacks meet them: the same answers, with what stood in the way of an attack taken out."""

from __future__ import annotations

import torch
from torch import Tensor

from saddlepoint.defenses import Context, Defense, Plain, Trace, View
from saddlepoint.gradients.rule import straight_through


class Guise(Defense):
    """Another defense with all its facts; what differs is told by the class."""

    def __init__(self, inner: Defense) -> None:
        self.inner = inner
        for fact in Defense.__annotations__:
            setattr(self, fact, getattr(inner, fact))
        if isinstance(inner, Plain):  # a net is not its own static net
            self.static = None

    def adapt(self, x: Tensor, ctx: Context) -> Defense:
        return type(self)(self.inner.adapt(x, ctx))

    def restrict(self, rows: Tensor) -> Defense:
        return type(self)(self.inner.restrict(rows))

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        return self.inner.trace(x, ctx)

    def answer(self, trace: Trace, ctx: Context) -> Tensor:
        return self.inner.answer(trace, ctx)


class LogProbabilities(Guise):
    """log p of a net that answers with probabilities: softmax(log p) = p, so no answer changes and no loss saturates twice."""

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        p = self.inner.trace(x, ctx).last
        return Trace((View("final", p.clamp(min=torch.finfo(p.dtype).tiny).log()),))

    def answer(self, trace: Trace, ctx: Context) -> Tensor:  # noqa: ARG002
        return trace.last


class NoGradient(Guise):
    """A defense whose gradients cannot be had, seen through its answers."""

    def __init__(self, inner: Defense) -> None:
        super().__init__(inner)
        self.grants = "score"


class ValueWithoutGrad(Guise):
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
