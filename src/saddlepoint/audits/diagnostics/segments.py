"""The smallest misclassified point on the way from a worst point to its clean image."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from saddlepoint.attacks.spaces import per_example
from saddlepoint.audits.cells import Job, Measurement, Values
from saddlepoint.audits.planning.audit_cost import SHRINK_STEPS


@dataclass(frozen=True)
class ShrinkPoints(Measurement):
    """Bisection on the segment from a clean image x to a misclassified point p.

    With low = 0 and high = 1, each step evaluates x + t (p - x) at t = (low + high) / 2. It sets
    high = t where that point is misclassified, and low = t elsewhere. The point at `high` is always
    misclassified, so its size is an upper bound of the minimal perturbation, even where the segment
    crosses several decision boundaries.

    Only for deterministic defenses with independent rows: elsewhere a point that is misclassified
    once, by chance or in another batch, shows nothing about its image.
    """

    rows: Tensor  # [M] correct without an attack
    points: Tensor  # [M, ...] misclassified

    @property
    def name(self) -> str:
        return "smallest perturbations"

    def compute(self, job: Job) -> Values:
        x = job.x[self.rows]
        direction = self.points.to(x) - x
        best = self.points.to(x)
        low = torch.zeros_like(direction.flatten(1)[:, 0])  # [M]
        high = torch.ones_like(low)
        for _ in range(SHRINK_STEPS):
            t = (low + high) / 2
            point = x + per_example(t, x) * direction
            wrong = self._misclassified(job, point)
            best = torch.where(per_example(wrong, x), point, best)
            high = torch.where(wrong, t, high)
            low = torch.where(wrong, low, t)
        return {"size": job.threat.space.size(best - x).cpu()}

    def _misclassified(self, job: Job, points: Tensor) -> Tensor:
        """[M] bool: the referee's decision on the target itself, not on a faster copy of it."""
        return job.recheck(points, self.rows).correct[0].to(points) < 0.5
