"""What a minimum-norm attack keeps: the nearest success, and something legal for rows that have none."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from saddlepoint.attacks.best import AttackResult, BestSoFar, block
from saddlepoint.attacks.oracle import Scores
from saddlepoint.attacks.spaces import Ball, per_example
from saddlepoint.gradients import Evaluation
from saddlepoint.rng import Keys

_HAIR = 1e-5  # of the box, per pixel: no distance to speak of, yet no copy of the clean image in single precision either


class MinNormTracker:
    """The nearest success visited, else the visited point of highest value.

    Each row keeps its own. Where rows are coupled only whole batches can be proposed; more successes are better, then shorter ones.
    A copy of the clean image is no proposal: until something better is visited the point is a hair away from it, which is all that
    a row needs whose clean image is already misclassified.
    """

    def __init__(self, center: Tensor, space: Ball, keys: Keys, coupled: bool) -> None:
        self._center = center
        self._space = space
        self._coupled = coupled
        hair = _HAIR * (space.box[1] - space.box[0]) * center.flatten(1).shape[1] ** (1 / space.p)
        start = replace(space, radius=min(hair, space.radius)).sample(center, keys)
        self._rows = _Keep(start, coupled=False)
        self._whole = _Keep(start, coupled=True) if coupled else self._rows
        self._inside = BestSoFar(center, coupled)

    @property
    def size(self) -> Tensor:
        """[N] the length of the nearest success of each row, infinite where there is none."""
        return torch.where(
            self._rows.fooled > 0, self._space.size(self._rows.point - self._center), torch.inf
        )

    def legal(self, x: Tensor) -> Tensor:
        """x itself; its projection when rows answer together, since then the batch must be a legal proposal as a whole."""
        return self._space.project(x, self._center) if self._coupled else x

    def update(self, x: Tensor, evaluation: Evaluation) -> None:
        size = self._space.size(x - self._center)
        moved = (
            block((size > 0).long(), self._coupled) > 0
        )  # false for copies, and for what is not a number
        value = torch.where(moved & ~evaluation.value.isnan(), evaluation.value, -torch.inf)
        success = evaluation.success & moved
        for keep in {self._rows, self._whole}:
            keep.update(x, size, value, success)
        inside = self._space.contains(x, self._center)
        self._inside.update(x, Evaluation(torch.where(inside, value, -torch.inf), success & inside))

    def search(self, oracle: Scores, steps: int) -> None:
        """`steps` readings on the segments from the clean image through each row's point.

        Independent rows are bisected: where the segment crosses the boundary is nearer still. Coupled rows found their points in
        different batches, which nobody answered together: ask, and lengthen those that fail in this company.
        """
        end = self._rows.point - self._center
        low = torch.zeros_like(self._rows.merit)
        high = torch.ones_like(self._rows.merit)
        for _ in range(steps):
            at = high if self._coupled else (low + high) / 2
            x = self.legal(self._center + per_example(at, end) * end)
            evaluation = oracle.score(x)
            self.update(x, evaluation)
            low = torch.where(evaluation.success, low, at)
            high = torch.where(evaluation.success, at, 1.1 * high if self._coupled else high)

    def result(self, oracle: Scores) -> AttackResult:
        """One more reading, of the point projected into the set: where it succeeds it is proposed, else the best seen inside.

        On the boundary itself rounding decides who is right, so the point is first lengthened by the root of the rounding unit.
        """
        beyond = 1 + torch.finfo(self._center.dtype).eps ** 0.5
        x = self._space.project(
            self._center + beyond * (self._whole.point - self._center), self._center
        )
        evaluation = oracle.score(x)
        claimed = self._whole.fooled
        self.update(x, evaluation)
        holds = block(evaluation.success.long(), self._coupled) >= claimed.clamp(min=1)
        return AttackResult(
            torch.where(per_example(holds, x), x, self._inside.point), self._inside.max_loss_point
        )


class _Keep:
    """More successes first, then shorter ones; without any, the higher value."""

    def __init__(self, x: Tensor, coupled: bool) -> None:
        self.coupled = coupled
        self.point = x
        self.fooled = torch.zeros(len(x), dtype=torch.long, device=x.device)
        self.merit = x.new_full((len(x),), -torch.inf)

    def update(self, x: Tensor, size: Tensor, value: Tensor, success: Tensor) -> None:
        fooled = block(success.long(), self.coupled)
        merit = torch.where(
            fooled > 0,
            -block(torch.where(success, size, 0.0), self.coupled),
            block(value, self.coupled),
        )
        better = (fooled > self.fooled) | ((fooled == self.fooled) & (merit > self.merit))
        self.point = torch.where(per_example(better, x), x, self.point)
        self.fooled = torch.where(better, fooled, self.fooled)
        self.merit = torch.where(better, merit, self.merit)
