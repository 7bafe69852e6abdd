"""The margin around images and on the line to their worst points."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from saddlepoint.attacks.losses import margin
from saddlepoint.attacks.objective import AttackObjective
from saddlepoint.attacks.oracle import grants
from saddlepoint.audits.cells import Job, Measurement, Values
from saddlepoint.audits.target.answer import attacked_defense
from saddlepoint.gradients import Backprop, EoT, Estimator, Evaluation
from saddlepoint.rng import Keys

_NEAR = 0.05  # of the radius: outputs that change completely within so little are unstable
_POINTS = 8
_DRAWS = 8


@dataclass(frozen=True)
class MeasureLandscape(Measurement):
    """Margins near images, agreement of nearby gradients, and margins toward worst points."""

    rows: Tensor  # [n]
    points: Tensor  # [n, ...] worst points

    @property
    def name(self) -> str:
        return "loss landscape"

    def compute(self, job: Job) -> Values:
        x = job.x[self.rows]
        keys = Keys.of(job.seed, self.rows)
        space = replace(job.threat.space, radius=_NEAR * job.threat.space.radius)
        near = [
            self._evaluate(job, space.sample(x, keys.fold_in(k + 1))).value for k in range(_POINTS)
        ]
        direction = self.points.to(x) - x
        line = [self._evaluate(job, x + t / _POINTS * direction) for t in range(1, _POINTS + 1)]
        return {
            "near": torch.stack(near).double().cpu(),
            "center": self._evaluate(job, x).value.double().cpu(),
            "cosine": self._cosine(job),
            "line": torch.stack([e.value for e in line]).double().cpu(),
            "line_success": torch.stack([e.success for e in line]).cpu(),
        }

    def _cosine(self, job: Job) -> Tensor:
        """Cosine of the gradients at two random points near an image; empty without gradients."""
        empty = torch.zeros(0, dtype=torch.float64)
        available = grants(job.defense.grants, "gradient")
        if not (available and grants(job.threat.access, "gradient")):
            return empty
        space = replace(job.threat.space, radius=_NEAR * job.threat.space.radius)
        x = job.x[self.rows]
        keys = Keys.of(job.seed, self.rows)
        grads = []
        try:
            for k in (1, 2):
                point = space.sample(x, keys.fold_in(k))
                result = _estimator(job).value_and_grad(self._objective(job), point, keys)
                grads.append(result.grad.flatten(1).double().nan_to_num(0.0, 0.0, 0.0))
        except (ValueError, RuntimeError):
            return empty  # a missing gradient is reported by another diagnostic
        first, second = grads
        both = (first != 0).any(1) & (second != 0).any(1)
        return torch.cosine_similarity(first, second)[both].cpu()

    def _objective(self, job: Job) -> AttackObjective:
        adapts = job.defense.memory != "none"
        defense = attacked_defense(job.defense)
        return AttackObjective([defense], job.y[self.rows], margin, respond=adapts)

    def _evaluate(self, job: Job, x: Tensor) -> Evaluation:
        keys = Keys.of(job.seed, self.rows)
        return _estimator(job).evaluate(self._objective(job), x, keys)


def _estimator(job: Job) -> Estimator:
    return EoT(_DRAWS) if job.defense.random else Backprop()
