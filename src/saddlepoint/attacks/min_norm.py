"""The points that a minimum-norm attack keeps: the nearest success, or the best point inside."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from saddlepoint.attacks.best import AttackResult, BestSoFar, block
from saddlepoint.attacks.oracle import Scores
from saddlepoint.attacks.spaces import Ball, per_example
from saddlepoint.gradients import Evaluation
from saddlepoint.rng import Keys

# Perturbation of the first proposal, in units of the box and per pixel: negligible as a distance,
# but large enough to differ from the clean image in single precision.
_MIN_PERTURBATION = 1e-5


class MinNormTracker:
    """Keeps the nearest visited success, or the visited point of highest value without a success.

    Each row keeps its own point. If rows are coupled, only whole batches can be proposed: more
    successes are better, then a smaller total norm. A copy of the clean image is not a proposal.
    Until a better point is visited, the proposal is a tiny random perturbation of the clean image,
    which is enough for rows that are misclassified without an attack.

    Args:
        center: clean inputs, [N, ...].
        space: the perturbation set, for its norm, radius and box.
        keys: random keys of the tiny perturbation.
        coupled: rows of the defense influence each other.
    """

    def __init__(self, center: Tensor, space: Ball, keys: Keys, coupled: bool) -> None:
        self._center = center
        self._space = space
        self._coupled = coupled
        width = space.box[1] - space.box[0]
        tiny = _MIN_PERTURBATION * width * center.flatten(1).shape[1] ** (1 / space.p)
        start = replace(space, radius=min(tiny, space.radius)).sample(center, keys)
        self._rows = _Nearest(start, coupled=False)
        self._whole = _Nearest(start, coupled=True) if coupled else self._rows
        self._inside = BestSoFar(center, coupled)
        self._region = space.around(center)

    @property
    def size(self) -> Tensor:
        """[N] the norm of the nearest success of each row; infinite without a success."""
        return torch.where(
            self._rows.successes > 0, self._space.size(self._rows.point - self._center), torch.inf
        )

    def legal(self, x: Tensor) -> Tensor:
        """x itself, or its projection onto the set if rows are coupled.

        A coupled batch can only be proposed as a whole, so all its rows must lie in the set.
        """
        return self._space.project(x, self._center) if self._coupled else x

    def update(self, x: Tensor, evaluation: Evaluation) -> Tensor:
        """Compare evaluated points, [N, ...], with those kept so far; [N] their norms."""
        size = self._space.size(x - self._center)
        moved = block((size > 0).long(), self._coupled) > 0  # false for copies and for NaN
        value = torch.where(moved & ~evaluation.value.isnan(), evaluation.value, -torch.inf)
        success = evaluation.success & moved
        for nearest in {self._rows, self._whole}:
            nearest.update(x, size, value, success)
        inside = self._region.contains(x, size)
        self._inside.update(x, Evaluation(torch.where(inside, value, -torch.inf), success & inside))
        return size

    def search(self, oracle: Scores, steps: int) -> None:
        """Search on the segments from the clean images to the kept points.

        Independent rows are bisected to the boundary. The points of coupled rows come from
        different batches and were not evaluated together. They are evaluated together here, and
        those that fail are lengthened by 10 % per step.

        Args:
            oracle: evaluates points and counts passes.
            steps: number of evaluations.
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
        """The result of the attack, after one more evaluation.

        The kept point is projected into the set and evaluated. It is proposed where it succeeds,
        else the best visited point inside the set. Exactly on the decision boundary rounding
        decides the class, so the perturbation is first lengthened by the square root of the
        rounding unit.
        """
        beyond = 1 + torch.finfo(self._center.dtype).eps ** 0.5
        x = self._space.project(
            self._center + beyond * (self._whole.point - self._center), self._center
        )
        evaluation = oracle.score(x)
        expected = self._whole.successes
        self.update(x, evaluation)
        confirmed = block(evaluation.success.long(), self._coupled) >= expected.clamp(min=1)
        return AttackResult(
            torch.where(per_example(confirmed, x), x, self._inside.point),
            self._inside.max_loss_point,
        )


class _Nearest:
    """The best point by number of successes, then by smaller norm; without success, by value."""

    def __init__(self, x: Tensor, coupled: bool) -> None:
        self.coupled = coupled
        self.point = x
        self.successes = torch.zeros(len(x), dtype=torch.long, device=x.device)
        self.merit = x.new_full((len(x),), -torch.inf)

    def update(self, x: Tensor, size: Tensor, value: Tensor, success: Tensor) -> None:
        successes = block(success.long(), self.coupled)
        merit = torch.where(
            successes > 0,
            -block(torch.where(success, size, 0.0), self.coupled),
            block(value, self.coupled),
        )
        better = (successes > self.successes) | (
            (successes == self.successes) & (merit > self.merit)
        )
        self.point = torch.where(per_example(better, x), x, self.point)
        self.successes = torch.where(better, successes, self.successes)
        self.merit = torch.where(better, merit, self.merit)
