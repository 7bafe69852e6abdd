"""The history of an attack: how the objective increased with the number of passes.

Every evaluation is recorded under the number of passes that its row had used, and summarized as a
loss curve at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import NamedTuple

import torch
from torch import Tensor

from saddlepoint.attacks.best import without_nan
from saddlepoint.attacks.oracle import Oracle, OracleWrapper
from saddlepoint.attacks.spaces import Region
from saddlepoint.describe import PlainValue
from saddlepoint.gradients import Evaluation, ValueAndGradient
from saddlepoint.phrases import count_of

POINTS = 64  # most points of a loss curve, for attacks of any length
_PENDING = 256  # most evaluations that wait to be summarized


class Step(NamedTuple):
    """One oracle call of an attack, for all rows of a batch."""

    value: Tensor  # [N] objective
    success: Tensor  # [N] bool: a point of the set that is misclassified
    gradient: Tensor  # [N] largest absolute gradient entry; NaN if no gradient was computed


class _Record(NamedTuple):
    """One evaluation of some rows, not yet added to the bins."""

    rows: Tensor  # [M]
    used: Tensor  # [M] forward passes that each row has used
    value: Tensor  # [M]
    success: Tensor  # [M] bool or in [0, 1]


class History:
    """The highest value and the success of each row, by forward passes used, in at most 64 bins.

    Bin k holds the evaluations made after more than s k and at most s (k + 1) passes of the row.
    The stride s starts at 1. It doubles when the bins run out, and pairs of bins are merged; it
    depends only on the longest row. Values of different objectives cannot be compared, so only
    those of the first objective are kept.

    Args:
        rows: number of rows.
        steps: a list to which every oracle call is appended; default None, not kept.
    """

    def __init__(self, rows: int, steps: list[Step] | None = None) -> None:
        self.rows = rows
        self.steps = steps
        self._stride = 1
        self._longest = 0
        # [2, N, POINTS] value and success; -inf where nothing was evaluated.
        self._best: Tensor | None = None
        self._objective: PlainValue = None
        self._pending: list[_Record] = []

    def record(
        self, objective: PlainValue, rows: Tensor, used: Tensor, value: Tensor, success: Tensor
    ) -> None:
        """Record one evaluation of some rows.

        Args:
            objective: identifies the objective.
            rows: the rows, [M].
            used: forward passes that each row has used, [M].
            value: values, [M]; NaN or -inf for no value.
            success: successes, [M], bool or in [0, 1].
        """
        self._objective = self._objective or objective
        if objective != self._objective:
            value = torch.full_like(value, -torch.inf)
        # Many evaluations are summarized at once: that is most of the cost of recording.
        self._pending.append(_Record(rows, used, value, success))
        if len(self._pending) >= _PENDING:
            self._summarize()

    def _summarize(self) -> None:
        """Add the pending evaluations to the bins."""
        if not self._pending:
            return
        pending, self._pending = self._pending, []
        rows, used, value, success = (torch.cat(parts) for parts in zip(*pending, strict=True))
        value = without_nan(value)
        best = self._best
        if best is None:
            best = value.new_full((2, self.rows, POINTS), -torch.inf)
        self._longest = max(self._longest, int(used.amax()))  # on the host
        while self._longest > POINTS * self._stride:
            pairs = best.view(2, self.rows, POINTS // 2, 2).amax(3)
            best = torch.cat([pairs, torch.full_like(pairs, -torch.inf)], dim=2)
            self._stride = 2 * self._stride
        at = (rows * POINTS + (used - 1) // self._stride).to(best.device)
        new = torch.stack([value, success.to(value)]).to(best)
        self._best = best.flatten(1).scatter_reduce(1, at.expand(2, -1), new, "amax").view_as(best)

    def loss_curve(self) -> Tensor:
        """The loss curve, [5, K] float64.

        Its rows are the number of passes; the number of examples that were evaluated by then, that
        were misclassified by then, and that have a value by then; and the sum of their highest
        values. An example that stopped early keeps its last values. Sums instead of means, so that
        `merge_loss_curves` can add the curves of several batches.
        """
        self._summarize()
        if self._best is None:
            return no_loss_curve()
        passes = _bin_ends(self._stride, self._longest)
        value, success = self._best[:, :, : len(passes)].cpu().double().cummax(2).values
        has_value = value.isfinite()
        evaluated = (success > -torch.inf).sum(0)
        misclassified = success.clamp(min=0).sum(0)
        # Sum the rows of every bin in the same order: rounding then cannot make a later sum lower.
        total = torch.where(has_value, value, 0.0).T.contiguous().sum(1)
        rows = (passes, evaluated, misclassified, has_value.sum(0), total)
        return torch.stack([row.double() for row in rows])


def no_loss_curve() -> Tensor:
    """The loss curve, [5, 0], of an attack without queries or with an unknown history."""
    return torch.zeros(5, 0, dtype=torch.float64)


def merge_loss_curves(curves: Sequence[Tensor]) -> Tensor:
    """The loss curve of all examples of several batches, [5, K].

    It has the longest stride of the parts. A part that has ended keeps its last values.

    Args:
        curves: loss curves, each [5, K_i].
    """
    parts = [part for part in curves if part.shape[1]]
    if not parts:
        return no_loss_curve()
    stride = max(int(part[0, 0]) for part in parts)
    longest = max(int(part[0, -1]) for part in parts)
    passes = _bin_ends(stride, longest)
    # For each part, the bin with the values after that many passes.
    sums = [
        part[1:, (passes / part[0, 0]).ceil().long().clamp(max=part.shape[1]) - 1] for part in parts
    ]
    return torch.cat([passes[None], reduce(torch.add, sums)])


def _bin_ends(stride: int, longest: int) -> Tensor:
    """[K] the passes at which the bins end: multiples of the stride, the last one `longest`."""
    return torch.arange(stride, longest + stride, stride, dtype=torch.float64).clamp(max=longest)


@dataclass(frozen=True)
class RecordingOracle(OracleWrapper):
    """An oracle that records every evaluation in a history and returns it unchanged.

    Points outside the set are recorded without value and success: attacks evaluate them but cannot
    propose them. Coupled rows are recorded with the mean value of their batch and the share of it
    that is misclassified, because no row could be evaluated alone. Decisions and class margins are
    recorded without value.
    """

    inner: Oracle
    history: History
    objective: PlainValue  # identifies the objective in the history
    sets: Region  # the perturbation sets of all rows
    trusted: bool = False  # the attack queries no point outside of them
    at: Tensor | None = None  # [N] the rows in `sets`; None: all

    def __getitem__(self, rows: Tensor) -> RecordingOracle:
        at = torch.arange(len(self), device=rows.device) if self.at is None else self.at
        return replace(self, inner=self.inner[rows], at=at[rows])

    @cached_property
    def region(self) -> Region:
        """The perturbation sets of these rows; only computed where points are checked."""
        return self.sets if self.at is None else self.sets[self.at]

    def decide(self, x: Tensor) -> Tensor:
        success = self.inner.decide(x)
        self._record(x, Evaluation(_no_value(x), success))
        return success

    def score(self, x: Tensor) -> Evaluation:
        evaluation = self.inner.score(x)
        self._record(x, evaluation)
        self._record_step(x, evaluation, None)
        return evaluation

    def gradient(self, x: Tensor) -> ValueAndGradient:
        result = self.inner.gradient(x)
        self._record(x, result.evaluation)
        self._record_step(x, result.evaluation, result.grad)
        return result

    def class_margins(self, x: Tensor) -> ValueAndGradient:
        result = self.inner.class_margins(x)
        self._record(x, Evaluation(_no_value(x), result.evaluation.success))
        return result

    def _record_step(self, x: Tensor, evaluation: Evaluation, grad: Tensor | None) -> None:
        """Append the call to the list of steps, if one is kept.

        Args:
            x: points, [N, ...].
            evaluation: their values and successes.
            grad: gradients, [N, ...], or None if none were computed.
        """
        if self.history.steps is None:
            return
        if len(self) != self.history.rows:
            raise TypeError(
                "an attack with recorded steps must evaluate all rows at every step, "
                f"got {count_of(len(self), self.history.rows, 'row')}. Record an attack such as "
                "PGD."
            )
        success = evaluation.success & self._inside(x)
        value = evaluation.value.detach()
        largest = torch.full_like(value, torch.nan)
        if grad is not None:
            largest = grad.detach().flatten(1).abs().amax(1).to(value)
        self.history.steps.append(Step(value, success, largest))

    def _inside(self, x: Tensor) -> Tensor:
        """[N] bool: which of the points, [N, ...], lie in their set."""
        if self.trusted:
            return torch.ones(len(x), dtype=torch.bool, device=x.device)
        return self.region.contains(x)

    def _record(self, x: Tensor, evaluation: Evaluation) -> None:
        if not len(self):
            return
        value = evaluation.value.detach()
        success = evaluation.success
        if self.coupled:
            value = value.mean().expand(len(self))
            success = success.to(value).mean().expand(len(self))
        if not self.trusted:
            inside = self.region.contains(x)
            if self.coupled:
                inside = inside.all().expand(len(self))
            value = torch.where(inside, value, -torch.inf)
            success = torch.where(inside, success, torch.zeros_like(success))
        rows = self.inner.rows
        used = self.inner.meter.forward.index_select(0, rows)
        self.history.record(self.objective, rows, used, value, success)


def _no_value(x: Tensor) -> Tensor:
    """[N] of -inf, in the type of x but at least float32."""
    return torch.full_like(
        x.flatten(1)[:, 0], -torch.inf, dtype=torch.promote_types(x.dtype, torch.float32)
    )
