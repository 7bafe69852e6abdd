"""What a minimum-norm attack keeps: the nearest success, and something legal for rows that have none."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from saddlepoint.attack.best import Best, Found, block
from saddlepoint.attack.oracle import Scores
from saddlepoint.attack.space import Ball, per_example
from saddlepoint.coins import Coins
from saddlepoint.gradients import Reading

_HAIR = 1e-5  # of the box, per pixel: no distance to speak of, yet no copy of the clean image in single precision either


class Nearest:
    """The nearest success visited, else the visited point of highest value; per example, or as one block when rows are coupled.

    A copy of the clean image is no proposal. Until something better is visited the point is a hair away from it, which is all that
    a row needs whose clean image is already misclassified.
    """

    def __init__(self, center: Tensor, space: Ball, coins: Coins, coupled: bool) -> None:
        self._center, self._space, self._coupled = center, space, coupled
        self._inside = Best(center, coupled)
        hair = _HAIR * (space.box[1] - space.box[0]) * center.flatten(1).shape[1] ** (1 / space.p)
        self.point = replace(space, radius=min(hair, space.radius)).sample(center, coins)
        self.success = torch.zeros(len(center), dtype=torch.bool, device=center.device)
        self._fooled = torch.zeros(len(center), dtype=torch.long, device=center.device)
        self._merit = center.new_full((len(center),), -torch.inf)

    @property
    def size(self) -> Tensor:
        """[N] the length of the nearest success, infinite where there is none."""
        return torch.where(self.success, self._space.size(self.point - self._center), torch.inf)

    def legal(self, x: Tensor) -> Tensor:
        """x itself; its projection when rows answer together, since then the batch must be a legal proposal as a whole."""
        return self._space.project(x, self._center) if self._coupled else x

    def offer(self, x: Tensor, reading: Reading) -> None:
        size = self._space.size(x - self._center)
        moved = block((size > 0).long(), self._coupled) > 0  # false for copies, and for what is not a number
        value = torch.where(moved, reading.value.nan_to_num(nan=-torch.inf), -torch.inf)
        success = reading.success & moved
        fooled = block(success.long(), self._coupled)
        merit = torch.where(fooled > 0, -block(torch.where(success, size, 0.0), self._coupled), block(value, self._coupled))
        better = (fooled > self._fooled) | ((fooled == self._fooled) & (merit > self._merit))
        self.point = torch.where(per_example(better, x), x, self.point)
        self.success = torch.where(better, success, self.success)
        self._fooled, self._merit = torch.where(better, fooled, self._fooled), torch.where(better, merit, self._merit)
        inside = self._space.contains(x, self._center)
        self._inside.offer(x, Reading(torch.where(inside, value, -torch.inf), success & inside))

    def search(self, oracle: Scores, steps: int) -> None:
        """Bisect the segment from the clean image to the point, `steps` readings: where it crosses the boundary is nearer still."""
        end, low = self.point - self._center, torch.zeros_like(self._merit)
        high = torch.ones_like(low)
        for _ in range(steps):
            middle = (low + high) / 2
            x = self._center + per_example(middle, end) * end
            reading = oracle.score(x)
            self.offer(x, reading)
            low, high = torch.where(reading.success, low, middle), torch.where(reading.success, middle, high)

    def found(self, oracle: Scores) -> Found:
        """One more reading, of the point projected into the set; a row whose point lies outside proposes the best seen inside."""
        x = self._space.project(self.point, self._center)
        self.offer(x, oracle.score(x))
        legal = self._space.contains(self.point, self._center)
        return Found(torch.where(per_example(legal, x), self.point, self._inside.point), self._inside.peak)
