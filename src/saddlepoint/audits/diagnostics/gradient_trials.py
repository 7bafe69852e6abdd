"""Diagnostics of gradients."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from saddlepoint.attacks.losses import margin
from saddlepoint.attacks.objective import AttackObjective
from saddlepoint.audits.cells import Job, Measurement, Values
from saddlepoint.audits.target.answer import AgainstAnswer, AnswerView, attacked_defense
from saddlepoint.evaluation import Adversary, Direct
from saddlepoint.gradients import Backprop
from saddlepoint.rng import Keys


@dataclass(frozen=True)
class GradientFailure(Measurement):
    """Images without a usable plain gradient of the margin: none, zero, or not finite."""

    rows: Tensor

    @property
    def name(self) -> str:
        return "plain gradients"

    def compute(self, job: Job) -> Values:
        objective = AttackObjective([attacked_defense(job.defense)], job.y[self.rows], margin)
        keys = Keys.of(job.seed, self.rows)
        try:
            grad = Backprop().value_and_grad(objective, job.x[self.rows], keys).grad.flatten(1)
        except (ValueError, RuntimeError):
            return {"fails": torch.ones(len(self.rows), dtype=torch.bool)}
        fails = (grad == 0).all(1) | ~grad.isfinite().all(1)
        return {"fails": fails.cpu()}


@dataclass(frozen=True)
class GradientCosine(Measurement):
    """Mean cosine of two gradients of a randomized defense at the same images."""

    adversary: Adversary
    rows: Tensor

    @property
    def name(self) -> str:
        return "agreement of averaged gradients"

    def compute(self, job: Job) -> Values:
        direct = direct_of(self.adversary)
        on_answer = isinstance(self.adversary, AgainstAnswer)
        defense = AnswerView(job.defense) if on_answer else job.defense
        objective = AttackObjective(
            [defense],
            job.y[self.rows],
            margin,
            direct.aim,
            direct.rules,
            direct.keep,
            direct.respond,
        )
        keys = Keys.of(job.seed, self.rows)
        grads = []
        for k in (1, 2):
            result = direct.estimator.value_and_grad(objective, job.x[self.rows], keys.fold_in(k))
            # A gradient that is not finite has no direction: it counts as zero.
            grads.append(result.grad.flatten(1).double().nan_to_num(0.0, 0.0, 0.0))
        return {"cosine": torch.cosine_similarity(grads[0], grads[1]).mean().cpu()}


def direct_of(adversary: Adversary) -> Direct:
    """The `Direct` inside a single run."""
    found: list[Direct] = []

    def note(direct: Direct) -> Direct:
        found.append(direct)
        return direct

    adversary.map_direct(note)
    return found[0]
