"""Attacks on what a defense answers, where that is not its last view."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from saddlepoint.attacks.best import AttackResult
from saddlepoint.audits.target.wrappers import Guise, LogProbabilities
from saddlepoint.defenses import Context, Defense, Trace, View
from saddlepoint.evaluation.adversary import AdversaryWrapper
from saddlepoint.evaluation.attack_context import AttackContext


def answer_is_not_last_view(defense: Defense) -> bool:
    """Does the defense answer with anything but its last view: an earlier exit, a mixture, a vote?"""
    if isinstance(defense, Guise):
        return not isinstance(defense, LogProbabilities) and answer_is_not_last_view(defense.inner)
    return type(defense).answer is not Defense.answer


class AnswerView(Defense):
    """A defense whose one view is its answer.

    An answer through which no gradient comes, such as a vote, keeps its value and takes the gradient of the mean view.
    """

    def __init__(self, inner: Defense) -> None:
        self.inner = inner
        self.coupled = inner.coupled
        self.random = inner.random
        self.memory = inner.memory
        self.grants = inner.grants
        self.static = inner.static
        self.rejects = inner.rejects

    def adapt(self, x: Tensor, ctx: Context) -> Defense:
        return AnswerView(self.inner.adapt(x, ctx))

    def restrict(self, rows: Tensor) -> Defense:
        return AnswerView(self.inner.restrict(rows))

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        trace = self.inner.trace(x, ctx)
        answer = self.inner.answer(trace, ctx)
        if torch.is_grad_enabled() and not answer.requires_grad:
            mean = trace.logits.mean(0)
            answer = answer + mean - mean.detach()
        return Trace((View("answer", answer),))


@dataclass(frozen=True)
class AgainstAnswer(AdversaryWrapper):
    """The adversary aimed at the answer instead of at views."""

    def move(self, context: AttackContext, defense: Defense, x: Tensor, y: Tensor) -> AttackResult:
        return self.adversary.move(context, AnswerView(defense), x, y)
