"""The result of an attack, and the best points found so far while it runs."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from saddlepoint.attacks.projections import copy_rows, largest, reading_is_free
from saddlepoint.attacks.spaces import per_example
from saddlepoint.gradients import Evaluation

_FEW_COORDINATES = 24
_FEW_RUNS = 8


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
    if not reading_is_free(x.device):
        return torch.where(per_example(chosen, x), x, otherwise)
    rows = chosen.nonzero()[:, 0]
    if not len(rows):
        return otherwise
    if len(rows) == len(chosen):
        return x.clone()
    return copy_rows(otherwise.detach().clone(), rows, x.detach().index_select(0, rows))


def overwrite_rows(kept: Tensor, chosen: Tensor, x: Tensor) -> Tensor:
    """`kept` with the rows of x where `chosen`, [N] bool.

    `kept` itself is changed where the host can read which rows these are, so that only they are
    copied. Otherwise the result is a new tensor.
    """
    if not reading_is_free(x.device):
        return torch.where(per_example(chosen, x), x, kept)
    mask = chosen.numpy()
    edges = np.flatnonzero(np.diff(mask, prepend=False, append=False)).tolist()
    if len(edges) > 2 * _FEW_RUNS:
        rows = chosen.nonzero()[:, 0]
        return copy_rows(kept, rows, x.detach().index_select(0, rows))
    # Rows that follow each other are copied without memory in between.
    for first, end in zip(edges[::2], edges[1::2], strict=True):
        kept[first:end].copy_(x.detach()[first:end])
    return kept


class Differences:
    """Finds the rows of points that differ from the start.

    A few coordinates are compared first: most rows that differ do so there. In the other rows it is
    the coordinate where the row differed last, and then all coordinates.

    Args:
        start: [N, ...].
    """

    def __init__(self, start: Tensor) -> None:
        self._start = start.detach().flatten(1)
        self._some = slice(0, None, max(self._start.shape[1] // _FEW_COORDINATES, 1))
        self._few = self._start[:, self._some].contiguous()
        self._at = np.zeros(len(start), dtype=np.int64)

    def __getitem__(self, rows: Tensor) -> Differences:
        part = copy(self)
        part._start = self._start[rows]
        part._few = self._few[rows]
        part._at = torch.from_numpy(self._at)[rows.cpu()].numpy()
        return part

    def __call__(self, x: Tensor) -> Tensor:
        """[N] bool: which rows of x, [N, ...], differ from the start."""
        flat = x.detach().flatten(1)
        # Maxima of floats are several times faster than comparisons of all coordinates.
        if not reading_is_free(x.device) or x.dtype == torch.bfloat16:
            return largest(flat - self._start) > 0
        points = flat.numpy()
        found = (points[:, self._some] != self._few.numpy()).any(1)
        if not found.all():
            rows = np.flatnonzero(~found)
            found[rows] = self._differ_elsewhere(points, rows)
        return torch.from_numpy(found)

    def _differ_elsewhere(
        self, points: NDArray[np.floating], rows: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """[M] bool: which rows, [M], of the points, [N, d], differ from the start."""
        start = self._start.numpy()
        at = self._at[rows]
        found: NDArray[np.bool_] = points[rows, at] != start[rows, at]
        others = np.flatnonzero(~found)
        if len(others):
            change = np.abs(points[rows[others]] - start[rows[others]])
            at = change.argmax(1)
            self._at = self._at.copy()  # shared with parts
            self._at[rows[others]] = at
            found[others] = change[np.arange(len(others)), at] > 0
        return found


def without_nan(value: Tensor) -> Tensor:
    """The values with -inf in place of NaN, which no attack prefers to a number."""
    return value.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)


def block(value: Tensor, coupled: bool) -> Tensor:
    """[N] the value of each row, or the total of the batch for every row if rows are coupled."""
    return value.sum().expand(len(value)) if coupled else value


class _Improved(NamedTuple):
    """Rows that improved, and the values after it, [N] each."""

    better: Tensor  # bool: x is the new point
    highest: Tensor  # bool: x is the new point of highest loss
    value: Tensor
    max_loss: Tensor
    success: Tensor  # bool


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
        self._differences = Differences(x)
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
        part._differences = self._differences[rows]
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
        if self._by_row(evaluation.value):
            improved = self._compare_rows(self._differences(x), evaluation)
        else:
            improved = self._compare_all(self._differences(x), evaluation)
        self._keep(x, improved.better, improved.highest)
        self.value = improved.value
        self.max_loss = improved.max_loss
        self.success = improved.success
        return improved.highest

    def _by_row(self, value: Tensor) -> bool:
        """Whether independent rows can be compared on the host, by numpy."""
        known = torch.bfloat16 not in (value.dtype, self.value.dtype)
        return known and not self.coupled and reading_is_free(value.device)

    def _compare_rows(self, moved: Tensor, evaluation: Evaluation) -> _Improved:
        """As `_compare_all`. Operations on few numbers take a fraction of the time in numpy."""
        change = moved.numpy()
        value = without_nan(evaluation.value.detach()).numpy()
        success = evaluation.success.numpy()
        if not change.all():
            value = np.where(change, value, -np.inf).astype(value.dtype)
            success = success & change
        before = self.success.numpy()
        best = self.value.numpy()
        most = self.max_loss.numpy()
        better = (success > before) | ((success == before) & (value > best))
        highest = value > most
        return _Improved(
            *map(
                torch.from_numpy,
                (
                    better,
                    highest,
                    np.where(better, value, best),
                    np.where(highest, value, most),
                    np.where(better, success, before),
                ),
            )
        )

    def _compare_all(self, moved: Tensor, evaluation: Evaluation) -> _Improved:
        """Compare rows, or whole batches if rows are coupled, with the best so far."""
        if self.coupled:
            moved = moved.any().expand(len(moved))
        value = torch.where(moved, without_nan(evaluation.value), -torch.inf)
        success = evaluation.success & moved
        more, as_many = self._compare(success)
        better = more | (as_many & (block(value, self.coupled) > block(self.value, self.coupled)))
        highest = block(value, self.coupled) > block(self.max_loss, self.coupled)
        return _Improved(
            better,
            highest,
            torch.where(better, value, self.value),
            torch.where(highest, value, self.max_loss),
            torch.where(better, success, self.success),
        )

    def _keep(self, x: Tensor, better: Tensor, highest: Tensor) -> None:
        """Keep the points x, [N, ...], of these rows, [N] bool each."""
        # Until a row is misclassified, both points are the same tensor.
        if self.point is not self.max_loss_point:
            self.point = overwrite_rows(self.point, better, x)
            self.max_loss_point = overwrite_rows(self.max_loss_point, highest, x)
        elif reading_is_free(x.device) and torch.equal(better, highest):
            self.point = self.max_loss_point = overwrite_rows(self.point, highest, x)
        else:
            self.max_loss_point = overwrite_rows(self.point.clone(), highest, x)
            self.point = overwrite_rows(self.point, better, x)

    def _compare(self, success: Tensor) -> tuple[Tensor, Tensor]:
        """[N] bool each: more successes than before, and as many; of the batch if coupled."""
        if not self.coupled:
            return success & ~self.success, success == self.success
        now = block(success.long(), coupled=True)
        before = block(self.success.long(), coupled=True)
        return now > before, now == before
