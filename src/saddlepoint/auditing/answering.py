"""Attacks on what a defence answers, where that is not its last view."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from saddlepoint.attack.best import Found
from saddlepoint.auditing.guises import Guise, Logarithm
from saddlepoint.defense import Context, Defense, Trace, View
from saddlepoint.game.adversary import Around, Turn


def answers_otherwise(defense: Defense) -> bool:
    """Does the defence answer with anything but its last view: an earlier exit, a mixture, a vote?"""
    if isinstance(defense, Guise):
        return not isinstance(defense, Logarithm) and answers_otherwise(defense.inner)
    return type(defense).answer is not Defense.answer


class Answering(Defense):
    """A defence whose one view is its answer.

    An answer through which no gradient comes, such as a vote, keeps its value and takes the gradient of the mean view.
    """

    def __init__(self, inner: Defense) -> None:
        self.inner, self.coupled, self.random, self.memory = inner, inner.coupled, inner.random, inner.memory
        self.grants, self.static, self.rejects = inner.grants, inner.static, inner.rejects

    def adapt(self, x: Tensor, ctx: Context) -> Defense:
        return Answering(self.inner.adapt(x, ctx))

    def restrict(self, rows: Tensor) -> Defense:
        return Answering(self.inner.restrict(rows))

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        trace = self.inner.trace(x, ctx)
        answer = self.inner.answer(trace, ctx)
        if torch.is_grad_enabled() and not answer.requires_grad:
            mean = trace.logits.mean(0)
            answer = answer + mean - mean.detach()
        return Trace((View("answer", answer),))


@dataclass(frozen=True)
class AtAnswer(Around):
    """The adversary aimed at the answer instead of at views."""

    def move(self, turn: Turn, defense: Defense, x: Tensor, y: Tensor) -> Found:
        return self.adversary.move(turn, Answering(defense), x, y)
