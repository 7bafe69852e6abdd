"""The best points so far, and what an attack returns."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass

import torch
from torch import Tensor

from saddlepoint.attacks.spaces import per_example
from saddlepoint.gradients import Evaluation


@dataclass(frozen=True)
class AttackResult:
    """What an attack proposes. Neither point is a clean copy unless the attack could not move at all."""

    point: Tensor  # fooled first, then by value: for the function that was attacked
    max_loss_point: Tensor  # the highest value, whatever it fooled: for any other function the point is scored on

    def __getitem__(self, rows: Tensor) -> AttackResult:
        return AttackResult(self.point[rows], self.max_loss_point[rows])

    def with_rows(self, rows: Tensor, other: AttackResult) -> AttackResult:
        """This result with the points of `rows`, [M], replaced by those of `other`."""
        return AttackResult(
            self.point.index_copy(0, rows, other.point),
            self.max_loss_point.index_copy(0, rows, other.max_loss_point),
        )


def reunited(parts: Sequence[tuple[Tensor, AttackResult]]) -> AttackResult:
    """One batch again from parts (rows, found) that were finished at different times."""
    order = torch.cat([rows for rows, _ in parts]).argsort()
    return AttackResult(
        torch.cat([found.point for _, found in parts]),
        torch.cat([found.max_loss_point for _, found in parts]),
    )[order]


def block(value: Tensor, coupled: bool) -> Tensor:
    """[N]: each row's own value, or the batch's total at every row when rows answer only together."""
    return value.sum().expand(len(value)) if coupled else value


class BestSoFar:
    """Keeps the two best points; per example, or as one block when rows are coupled.

    A mosaic of rows from different batches was never answered by anybody, so coupled rows are compared and kept as whole batches.
    The point it starts from, usually the clean image, is no proposal: coming back to it betters nothing.
    """

    def __init__(self, x: Tensor, coupled: bool) -> None:
        self.coupled = coupled
        self._start = self.point = self.max_loss_point = x
        self.success = torch.zeros(len(x), dtype=torch.bool, device=x.device)
        self.value = self.max_loss = x.new_full((len(x),), -torch.inf)

    @property
    def result(self) -> AttackResult:
        return AttackResult(self.point, self.max_loss_point)

    def __getitem__(self, rows: Tensor) -> BestSoFar:
        """What these rows hold, to be bettered by them alone."""
        part = copy(self)
        part.point = self.point[rows]
        part.max_loss_point = self.max_loss_point[rows]
        part.success = self.success[rows]
        part._start = self._start[rows]
        part.value = self.value[rows]
        part.max_loss = self.max_loss[rows]
        return part

    def update(self, x: Tensor, evaluation: Evaluation) -> Tensor:
        """[N] bool: where this is the new peak."""
        moved = block((x != self._start).flatten(1).any(1).long(), self.coupled) > 0
        value = torch.where(moved & ~evaluation.value.isnan(), evaluation.value, -torch.inf)
        success = evaluation.success & moved
        fooled = block(success.long(), self.coupled)
        was_fooled = block(self.success.long(), self.coupled)
        higher = block(value, self.coupled) > block(self.value, self.coupled)
        better = (fooled > was_fooled) | ((fooled == was_fooled) & higher)
        max_loss_point = block(value, self.coupled) > block(self.max_loss, self.coupled)
        alike = self.point is self.max_loss_point and torch.equal(
            better, max_loss_point
        )  # until something fools, the two are one
        self.point = torch.where(per_example(better, x), x, self.point)
        before = self.max_loss_point
        self.max_loss_point = (
            self.point if alike else torch.where(per_example(max_loss_point, x), x, before)
        )
        self.value = torch.where(better, value, self.value)
        self.max_loss = torch.where(max_loss_point, value, self.max_loss)
        self.success = torch.where(better, success, self.success)
        return max_loss_point
