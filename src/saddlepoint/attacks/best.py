"""The result of an attack, and the best points found so far while it runs."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass

import torch
from torch import Tensor

from saddlepoint.attacks.projections import copy_rows, largest, reading_is_free
from saddlepoint.attacks.spaces import per_example
from saddlepoint.gradients import Evaluation

_FEW_COORDINATES = 32


@dataclass(frozen=True)
class AttackResult:
    """The points that an attack proposes.

    Attacks propose a point other than the clean input wherever the perturbation set allows it.
    Adversaries such as `SkipMisclassified` may return the clean input.
    """

    # [N, ...] a misclassified point if there is one, else the point of highest loss. For the
    # function that was attacked.
    point: Tensor
    # [N, ...] the point of highest loss, misclassified or not. For other functions on which the
    # point is evaluated.
    max_loss_point: Tensor

    def __getitem__(self, rows: Tensor) -> AttackResult:
        return AttackResult(self.point[rows], self.max_loss_point[rows])

    def with_rows(self, rows: Tensor, other: AttackResult) -> AttackResult:
        """This result with the points of `rows`, [M], replaced by those of `other`."""
        return AttackResult(
            self.point.index_copy(0, rows, other.point),
            self.max_loss_point.index_copy(0, rows, other.max_loss_point),
        )


def merge_results(parts: Sequence[tuple[Tensor, AttackResult]]) -> AttackResult:
    """Merge results of parts of a batch that finished at different times.

    Args:
        parts: pairs of row numbers, [M], and the result of these rows. Each row occurs once.
    """
    order = torch.cat([rows for rows, _ in parts]).argsort()
    return AttackResult(
        torch.cat([result.point for _, result in parts]),
        torch.cat([result.max_loss_point for _, result in parts]),
    )[order]


def select_rows(chosen: Tensor, x: Tensor, otherwise: Tensor) -> Tensor:
    """The rows of x where `chosen`, [N] bool, and of `otherwise` elsewhere.

    A copy, or `otherwise` itself if no row is chosen.
    """
    if reading_is_free(x.device):
        count = int(chosen.sum())
        if count == len(chosen):
            return x.clone()
        if not count:
            return otherwise
    return torch.where(per_example(chosen, x), x, otherwise)


def overwrite_rows(kept: Tensor, chosen: Tensor, x: Tensor) -> Tensor:
    """`kept` with the rows of x where `chosen`, [N] bool.

    `kept` itself is changed where the host can read which rows these are, so that only they are
    copied. Otherwise the result is a new tensor.
    """
    if not reading_is_free(x.device):
        return torch.where(per_example(chosen, x), x, kept)
    rows = chosen.nonzero()[:, 0]
    if len(rows) == len(chosen):
        return kept.copy_(x)
    if not len(rows):
        return kept
    return copy_rows(kept, rows, x.detach().index_select(0, rows))


def differs(x: Tensor, other: Tensor) -> Tensor:
    """[N] bool: which rows of x differ from those of `other`, [N, ...]."""
    # Maxima of floats are several times faster than comparisons of all coordinates.
    if not reading_is_free(x.device):
        return largest(x - other) > 0
    flat = x.flatten(1)
    middle = flat.shape[1] // 2
    few = (slice(None), slice(middle, middle + _FEW_COORDINATES))  # neighbors in memory
    change: Tensor = torch.linalg.vector_norm(flat[few] - other.flatten(1)[few], dim=1)
    found = change > 0  # most rows that differ do so here
    if bool(found.all()):
        return found
    rows = (~found).nonzero()[:, 0]
    rest = largest(x.index_select(0, rows) - other.index_select(0, rows)) > 0
    return found.index_copy_(0, rows, rest)


def without_nan(value: Tensor) -> Tensor:
    """The values with -inf in place of NaN, which no attack prefers to a number."""
    return value.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)


def block(value: Tensor, coupled: bool) -> Tensor:
    """[N] the value of each row, or the total of the batch for every row if rows are coupled."""
    return value.sum().expand(len(value)) if coupled else value


class BestSoFar:
    """Keeps the two best points: per example, or per batch if rows are coupled.

    A mix of rows from different batches was never evaluated together. Coupled rows are therefore
    compared and kept as whole batches. The start, usually the clean image, is not a proposal: a
    point equal to it never counts as an improvement.

    Args:
        x: start, [N, ...].
        coupled: rows of the defense influence each other.
    """

    def __init__(self, x: Tensor, coupled: bool) -> None:
        self.coupled = coupled
        self._start = x
        self.point = self.max_loss_point = x.clone()  # its rows are overwritten
        self.success = torch.zeros(len(x), dtype=torch.bool, device=x.device)
        self.value = self.max_loss = x.new_full((len(x),), -torch.inf)

    @property
    def result(self) -> AttackResult:
        """The two best points so far."""
        return AttackResult(self.point, self.max_loss_point)

    def __getitem__(self, rows: Tensor) -> BestSoFar:
        """A copy with some of the rows; updating it does not change this object."""
        part = copy(self)
        part.point = self.point[rows]
        part.max_loss_point = self.max_loss_point[rows]
        part.success = self.success[rows]
        part._start = self._start[rows]
        part.value = self.value[rows]
        part.max_loss = self.max_loss[rows]
        return part

    def update(self, x: Tensor, evaluation: Evaluation) -> Tensor:
        """Compare evaluated points with the best so far and keep the better ones.

        Args:
            x: points, [N, ...].
            evaluation: their values and successes. NaN values never improve.

        Returns:
            [N] bool: rows where x is the new point of highest loss.
        """
        moved = differs(x, self._start)
        if self.coupled:
            moved = moved.any().expand(len(x))
        value = torch.where(moved, without_nan(evaluation.value), -torch.inf)
        success = evaluation.success & moved
        more, as_many = self._compare(success)
        better = more | (as_many & (block(value, self.coupled) > block(self.value, self.coupled)))
        highest = block(value, self.coupled) > block(self.max_loss, self.coupled)
        # Until a row is misclassified, both points are the same tensor.
        if self.point is self.max_loss_point:
            if reading_is_free(x.device) and torch.equal(better, highest):
                self.point = self.max_loss_point = overwrite_rows(self.point, highest, x)
            else:
                self.max_loss_point = overwrite_rows(self.point.clone(), highest, x)
                self.point = overwrite_rows(self.point, better, x)
        else:
            self.point = overwrite_rows(self.point, better, x)
            self.max_loss_point = overwrite_rows(self.max_loss_point, highest, x)
        self.value = torch.where(better, value, self.value)
        self.max_loss = torch.where(highest, value, self.max_loss)
        self.success = torch.where(better, success, self.success)
        return highest

    def _compare(self, success: Tensor) -> tuple[Tensor, Tensor]:
        """[N] bool each: more successes than before, and as many; of the batch if coupled."""
        if not self.coupled:
            return success & ~self.success, success == self.success
        now = block(success.long(), coupled=True)
        before = block(self.success.long(), coupled=True)
        return now > before, now == before
