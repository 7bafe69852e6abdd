"""Attacks on the answer of a defense, where that is not its last view."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from saddlepoint.attacks.best import AttackResult
from saddlepoint.defenses import Context, Defense, DefenseWrapper, Trace, View
from saddlepoint.evaluation.adversary import Adversary, AdversaryWrapper
from saddlepoint.evaluation.attack_context import AttackContext


def answer_is_not_last_view(defense: Defense) -> bool:
    """Whether the defense answers with something else: an earlier exit, a mixture, a vote."""
    if isinstance(defense, DefenseWrapper):
        return not defense.replaces_views and answer_is_not_last_view(defense.inner)
    return type(defense).answer is not Defense.answer


class AnswerView(DefenseWrapper):
    """A defense with one view, its answer, so that it declares no `reads`.

    An answer without a gradient, such as a vote, keeps its value and gets the gradient of the mean
    view.
    """

    replaces_views: ClassVar[bool] = True

    def __init__(self, inner: Defense) -> None:
        super().__init__(inner)
        self.reads = None

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        trace = self.inner.trace(x, ctx)
        answer = self.inner.answer(trace, ctx)
        if torch.is_grad_enabled() and not answer.requires_grad:
            mean = trace.logits.mean(0)
            answer = answer + mean - mean.detach()
        return Trace((View("answer", answer),))

    def answer(self, trace: Trace, ctx: Context) -> Tensor:  # noqa: ARG002
        return trace.last


@dataclass(frozen=True)
class AgainstAnswer(AdversaryWrapper):
    """The adversary aimed at the answer instead of at views."""

    def single_run(self) -> Adversary | None:
        inner = self.adversary.single_run()
        return None if inner is None else AgainstAnswer(inner)

    def move(self, context: AttackContext, defense: Defense, x: Tensor, y: Tensor) -> AttackResult:
        return self.adversary.move(context, AnswerView(defense), x, y)


def attacked_defense(defense: Defense) -> Defense:
    """The defense that attacks use: its answer is its last view."""
    return AnswerView(defense) if answer_is_not_last_view(defense) else defense
