"""Rows that have won stop paying, whatever the attack."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from saddlepoint.attacks.best import AttackResult
from saddlepoint.attacks.oracle import Differentiates, OracleWrapper
from saddlepoint.attacks.spaces import Ball, per_example
from saddlepoint.gradients import Evaluation, ValueAndGradient


@dataclass
class _Record:
    """The first winning point of each row: what an attacker would have written down."""

    won: Tensor  # [N] bool
    points: Tensor  # [N, ...]


@dataclass(frozen=True)
class StopAtSuccess(OracleWrapper):
    """An oracle that asks about a row only until one of its points wins, that is, fools from inside the set and is not the center.

    For a row that has won, a reading says success and is worth nothing (-inf, which no comparison prefers to a point that was
    read), a slope is flat, and the meter stands still. Attacks also look at points that they would not propose (the center,
    neighbors, wider balls), so a win may pass them by: the winning points are kept here, and `finish` puts them in place.

    Meant for defenses that are deterministic and answer row by row: under noise the first lucky draw would end the search.
    """

    center: Tensor  # [N, ...]
    space: Ball
    record: _Record
    rows: Tensor  # [N] which rows of the record these are

    @classmethod
    def of(cls, oracle: Differentiates, center: Tensor, space: Ball) -> StopAtSuccess:
        if oracle.coupled:
            raise ValueError(
                "rows of a coupled defense answer only together, so none of them can stop: ask the oracle itself."
            )
        n = len(center)
        none = torch.zeros(n, dtype=torch.bool, device=center.device)
        return cls(
            oracle, center, space, _Record(none, center), torch.arange(n, device=center.device)
        )

    @property
    def coupled(self) -> bool:
        return False

    @property
    def won(self) -> Tensor:  # [N] bool
        return self.record.won[self.rows]

    def finish(self, found: AttackResult) -> AttackResult:
        """What the attack found, with the winning point of each row that won; as its peak too if the attack heard of none."""
        won = per_example(self.won, self.center)
        points = self.record.points[self.rows]
        unheard = per_example((found.max_loss_point == self.center).flatten(1).all(1), self.center)
        return AttackResult(
            torch.where(won, points, found.point),
            torch.where(won & unheard, points, found.max_loss_point),
        )

    def __getitem__(self, rows: Tensor) -> StopAtSuccess:
        return replace(self, inner=self.inner[rows], center=self.center[rows], rows=self.rows[rows])

    def left(self) -> int:
        return self.inner[self._open()].left()

    def allowance(self) -> Tensor:
        """[N] readings that each row can still pay for; what a winner asks for is free."""
        own = self.inner.allowance()
        return torch.where(self.won.to(own.device), 2**62, own)

    def decide(self, x: Tensor) -> Tensor:
        at = self._open()
        success = self._seat(at).decide(x[at]) if len(at) else at.bool()
        self._note(at, x, success)
        return self._all(success, at, 1)

    def score(self, x: Tensor) -> Evaluation:
        at = self._open()
        return self._heard(
            at, x, self._seat(at).score(x[at]) if len(at) else Evaluation(x.new_zeros(0), at.bool())
        )

    def gradient(self, x: Tensor) -> ValueAndGradient:
        at = self._open()
        evaluation, grad = (
            self._seat(at).gradient(x[at])
            if len(at)
            else ValueAndGradient(Evaluation(x.new_zeros(0), at.bool()), x[at])
        )
        return ValueAndGradient(self._heard(at, x, evaluation), self._all(grad, at, 0.0))

    def class_margins(self, x: Tensor) -> ValueAndGradient:
        """As `gradient`, with margins of 0 for winners: whoever divides a margin by its gradient must not meet an infinity."""
        at = self._open()
        (value, success), grad = (
            self._seat(at).class_margins(x[at])
            if len(at)
            else ValueAndGradient(Evaluation(x.new_zeros(1, 0), at.bool()), x[None, at])
        )
        self._note(at, x, success)
        return ValueAndGradient(
            Evaluation(self._all(value, at, 0.0, dim=1), self._all(success, at, 1)),
            self._all(grad, at, 0.0, dim=1),
        )

    def _open(self) -> Tensor:
        """Rows that have not won."""
        return (~self.won).nonzero()[:, 0]

    def _seat(self, at: Tensor) -> Differentiates:
        return self.inner if len(at) == len(self) else self.inner[at]

    def _heard(self, at: Tensor, x: Tensor, evaluation: Evaluation) -> Evaluation:
        self._note(at, x, evaluation.success)
        return Evaluation(
            self._all(evaluation.value, at, -torch.inf), self._all(evaluation.success, at, 1)
        )

    def _note(self, at: Tensor, x: Tensor, success: Tensor) -> None:
        if not success.any():
            return
        at = at[success]
        moved = (x[at] != self.center[at]).flatten(1).any(1)
        at = at[moved & self.space.contains(x[at], self.center[at])]
        self.record.won = self.record.won.index_fill(0, self.rows[at], True)
        self.record.points = self.record.points.index_copy(0, self.rows[at], x[at].detach())

    def _all(self, part: Tensor, at: Tensor, otherwise: float, dim: int = 0) -> Tensor:
        """`part` on the rows `at`, and `otherwise` on the others."""
        shape = [*part.shape[:dim], len(self), *part.shape[dim + 1 :]]
        return part.new_full(shape, otherwise).index_copy(dim, at, part)
