"""The goal that images become one class, as an untargeted attack on two classes."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from saddlepoint.defenses import Context, Defense, DefenseWrapper, Trace, View
from saddlepoint.phrases import count


class TowardClass(DefenseWrapper):
    """A defense with two classes: class 1 is the target class t, class 0 all others together.

    The logits are max_{j != t} z_j and z_t. An image with label 0 is misclassified if it becomes
    class t, so every attack and every loss can be used. The last view is the answer, so that it
    declares no `reads`. It has no `static` net, which would have more classes.
    """

    replaces_views: ClassVar[bool] = True

    def __init__(self, inner: Defense, target: int) -> None:
        super().__init__(inner)
        self.target = target
        self.reads = None
        self.static = None

    def rewrap(self, inner: Defense, rows: Tensor | None = None) -> Defense:  # noqa: ARG002
        return TowardClass(inner, self.target)

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        trace = self.inner.trace(x, ctx)
        answer = self.inner.answer(trace, ctx)
        views = [View(view.name, against_others(view.logits, self.target)) for view in trace.views]
        if answer is not trace.last:
            views.append(View("answer", against_others(answer, self.target)))
        return Trace(tuple(views))

    def answer(self, trace: Trace, ctx: Context) -> Tensor:  # noqa: ARG002
        return trace.last


def against_others(logits: Tensor, target: int) -> Tensor:
    """The logits of all other classes together and of class t: [..., C] -> [..., 2].

    Raises:
        ValueError: there is no class t.
    """
    classes = logits.shape[-1]
    if target >= classes:
        raise ValueError(
            f"the target class of the threat model is {target}, but the defense has "
            f"{count(classes, 'class')} (0 to {classes - 1}). Choose one of these."
        )
    others = torch.cat([logits[..., :target], logits[..., target + 1 :]], -1)
    return torch.stack([others.amax(-1), logits[..., target]], -1)
