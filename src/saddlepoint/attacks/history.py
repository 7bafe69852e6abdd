"""How an attack's objective rose: every reading is written down by how many passes its row had spent, and summed up at the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor

from saddlepoint.attacks.oracle import Oracle, OracleWrapper
from saddlepoint.attacks.spaces import Ball
from saddlepoint.describe import PlainValue
from saddlepoint.gradients import Evaluation, ValueAndGradient

POINTS = 64  # at most, however long the attack


class Step(NamedTuple):
    """One oracle call of an attack, for all rows of a batch."""

    value: Tensor  # [N] objective
    success: Tensor  # [N] bool: a point of the set that is misclassified
    gradient: Tensor  # [N] largest absolute gradient entry; NaN if no gradient was computed


class History:
    """The highest value of each row and whether it was fooled, by forward passes spent; at most `POINTS` places.

    Place k holds what was read after more than s k and at most s (k + 1) passes of the row's own. The stride s is 1 and doubles
    when the places run out, two of them becoming one: a power of two that depends on nothing but the longest row. Values of
    different objectives do not compare, so those of the first one are kept. With a list `steps`, every
    oracle call is also appended to it.
    """

    def __init__(self, rows: int, steps: list[Step] | None = None) -> None:
        self.rows = rows
        self.steps = steps
        self._stride = 1
        self._longest = 0
        self._best: Tensor | None = (
            None  # [2, N, POINTS] value and success, -inf where nothing was read
        )
        self._objective: PlainValue = None

    def note(
        self, objective: PlainValue, rows: Tensor, spent: Tensor, value: Tensor, success: Tensor
    ) -> None:
        """Readings [N] of these rows, with what each has spent; a value of -inf is none, a success lies in [0, 1]."""
        self._objective = self._objective or objective
        value = value if objective == self._objective else torch.full_like(value, -torch.inf)
        best = (
            value.new_full((2, self.rows, POINTS), -torch.inf) if self._best is None else self._best
        )
        self._longest = max(self._longest, int(spent.amax()))
        while self._longest > POINTS * self._stride:
            pairs = best.view(2, self.rows, POINTS // 2, 2).amax(3)
            best = torch.cat([pairs, torch.full_like(pairs, -torch.inf)], dim=2)
            self._stride = 2 * self._stride
        at = (rows * POINTS + (spent - 1) // self._stride).to(best.device)
        new = torch.stack([value, success.to(value)]).to(best)
        self._best = best.flatten(1).scatter_reduce(1, at.expand(2, -1), new, "amax").view_as(best)

    def loss_curve(self) -> Tensor:
        """[5, K]: passes; rows asked by then, fooled by then, with a value by then; the sum of their highest values.

        A row that left keeps what it had. Sums, not means: the ascents of several batches are put `together` by adding them.
        """
        if self._best is None:
            return no_loss_curve()
        passes = _places(self._stride, self._longest)
        value, success = self._best[:, :, : len(passes)].cpu().double().cummax(2).values
        known = value.isfinite()
        counts = (success > -torch.inf).sum(0), success.clamp(min=0).sum(0), known.sum(0)
        total = (
            torch.where(known, value, 0.0).T.contiguous().sum(1)
        )  # every place in the same order of rows, so that none is less
        return torch.stack([row.double() for row in (passes, *counts, total)])


def no_loss_curve() -> Tensor:
    """The ascent of an attack that asked nothing, or of which nothing is known."""
    return torch.zeros(5, 0, dtype=torch.float64)


def merge_loss_curves(ascents: Sequence[Tensor]) -> Tensor:
    """The ascent of all rows, at the longest stride of the parts; a part that has ended stays where it was."""
    parts = [part for part in ascents if part.shape[1]]
    if not parts:
        return no_loss_curve()
    passes = _places(*(max(int(part[0, at]) for part in parts) for at in (0, -1)))
    # The place of each part that holds what was known after that many passes.
    sums = [
        part[1:, (passes / part[0, 0]).ceil().long().clamp(max=part.shape[1]) - 1] for part in parts
    ]
    return torch.cat([passes[None], reduce(torch.add, sums)])


def _places(stride: int, longest: int) -> Tensor:
    """[K] the passes at which places end; the first is the stride, the last is as long as any row took."""
    return torch.arange(stride, longest + stride, stride, dtype=torch.float64).clamp(max=longest)


@dataclass(frozen=True)
class RecordingOracle(OracleWrapper):
    """An oracle whose readings are written down; it answers as the one inside does.

    Points outside the set have no value and fool nobody: attacks look at them, but could not propose them. Rows that answer
    together have the mean value of their batch and the share of it that is fooled, since none of them could be had alone. Decisions
    and facets have no value: they tell whether a row was fooled.
    """

    inner: Oracle
    history: History
    objective: PlainValue  # what tells it from others
    center: Tensor  # [N, ...]
    space: Ball

    def __getitem__(self, rows: Tensor) -> RecordingOracle:
        return replace(self, inner=self.inner[rows], center=self.center[rows])

    def decide(self, x: Tensor) -> Tensor:
        success = self.inner.decide(x)
        self._note(x, Evaluation(_no_value(x), success))
        return success

    def score(self, x: Tensor) -> Evaluation:
        evaluation = self.inner.score(x)
        self._note(x, evaluation)
        self._note_step(x, evaluation, torch.full_like(evaluation.value, torch.nan))
        return evaluation

    def gradient(self, x: Tensor) -> ValueAndGradient:
        result = self.inner.gradient(x)
        self._note(x, result.evaluation)
        self._note_step(x, result.evaluation, result.grad.flatten(1).abs().amax(1))
        return result

    def class_margins(self, x: Tensor) -> ValueAndGradient:
        slope = self.inner.class_margins(x)
        self._note(x, Evaluation(_no_value(x), slope.evaluation.success))
        return slope

    def _note_step(self, x: Tensor, evaluation: Evaluation, gradient: Tensor) -> None:
        """Append the call to the detailed history, if one is kept."""
        if self.history.steps is None:
            return
        if len(self) != self.history.rows:
            raise TypeError(
                "an attack whose steps are recorded must evaluate all rows at every step, "
                f"got {len(self)} of {self.history.rows} rows. Record an attack such as PGD."
            )
        success = evaluation.success & self.space.contains(x, self.center)
        value = evaluation.value.detach()
        self.history.steps.append(Step(value, success, gradient.detach().to(value)))

    def _note(self, x: Tensor, evaluation: Evaluation) -> None:
        if not len(self):
            return
        legal = self.space.contains(x, self.center)
        value = evaluation.value.detach()
        success = evaluation.success.to(evaluation.value)
        if self.coupled:
            legal = legal.all().expand(len(self))
            value = value.mean().expand(len(self))
            success = success.mean().expand(len(self))
        value = torch.where(legal & ~value.isnan(), value, -torch.inf)
        success = torch.where(legal, success, 0.0)
        rows = self.inner.rows
        self.history.note(self.objective, rows, self.inner.meter.forward[rows], value, success)


def _no_value(x: Tensor) -> Tensor:
    return torch.full_like(
        x.flatten(1)[:, 0], -torch.inf, dtype=torch.promote_types(x.dtype, torch.float32)
    )
