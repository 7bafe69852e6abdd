"""The best points so far, and what an attack returns."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass

import torch
from torch import Tensor

from saddlepoint.attack.space import per_example
from saddlepoint.gradients import Reading


@dataclass(frozen=True)
class Found:
    """What an attack proposes. Neither point is a clean copy unless the attack could not move at all."""

    point: Tensor  # fooled first, then by value: for the function that was attacked
    peak: Tensor  # the highest value, whatever it fooled: for any other function the point is scored on

    def __getitem__(self, rows: Tensor) -> Found:
        return Found(self.point[rows], self.peak[rows])


def reunited(parts: Sequence[tuple[Tensor, Found]]) -> Found:
    """One batch again from parts (rows, found) that were finished at different times."""
    order = torch.cat([rows for rows, _ in parts]).argsort()
    return Found(torch.cat([found.point for _, found in parts]), torch.cat([found.peak for _, found in parts]))[order]


def block(value: Tensor, coupled: bool) -> Tensor:
    """[N]: each row's own value, or the batch's total at every row when rows answer only together."""
    return value.sum().expand(len(value)) if coupled else value


class Best:
    """Keeps the two best points; per example, or as one block when rows are coupled.

    A mosaic of rows from different batches was never answered by anybody, so coupled rows are compared and kept as whole batches.
    The point it starts from, usually the clean image, is no proposal: coming back to it betters nothing.
    """

    def __init__(self, x: Tensor, coupled: bool) -> None:
        self.coupled = coupled
        self._start = self.point = self.peak = x
        self.success = torch.zeros(len(x), dtype=torch.bool, device=x.device)
        self.value = self.peak_value = x.new_full((len(x),), -torch.inf)

    @property
    def found(self) -> Found:
        return Found(self.point, self.peak)

    def __getitem__(self, rows: Tensor) -> Best:
        """What these rows hold, to be bettered by them alone."""
        part = copy(self)
        part.point, part.peak, part.success = self.point[rows], self.peak[rows], self.success[rows]
        part._start, part.value, part.peak_value = self._start[rows], self.value[rows], self.peak_value[rows]
        return part

    def offer(self, x: Tensor, reading: Reading) -> Tensor:
        """[N] bool: where this is the new peak."""
        moved = block((x != self._start).flatten(1).any(1).long(), self.coupled) > 0
        value, success = torch.where(moved & ~reading.value.isnan(), reading.value, -torch.inf), reading.success & moved
        fooled, was_fooled = block(success.long(), self.coupled), block(self.success.long(), self.coupled)
        higher = block(value, self.coupled) > block(self.value, self.coupled)
        better = (fooled > was_fooled) | ((fooled == was_fooled) & higher)
        peak = block(value, self.coupled) > block(self.peak_value, self.coupled)
        alike = self.point is self.peak and torch.equal(better, peak)  # until something fools, the two are one
        self.point, before = torch.where(per_example(better, x), x, self.point), self.peak
        self.peak = self.point if alike else torch.where(per_example(peak, x), x, before)
        self.value, self.peak_value = torch.where(better, value, self.value), torch.where(peak, value, self.peak_value)
        self.success = torch.where(better, success, self.success)
        return peak
