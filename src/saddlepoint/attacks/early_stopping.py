"""Stop querying examples that are already misclassified, for any attack."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from saddlepoint.attacks.best import AttackResult
from saddlepoint.attacks.oracle import Differentiates, OracleWrapper
from saddlepoint.attacks.spaces import Ball, per_example
from saddlepoint.gradients import Evaluation, ValueAndGradient


@dataclass
class _Successes:
    """The first successful point of each row, shared by all restrictions of an oracle."""

    found: Tensor  # [N] bool
    points: Tensor  # [N, ...]
    version: int = 0  # how often rows were added


class _OpenRows(NamedTuple):
    """The rows that have not succeeded, and the inner oracle restricted to them."""

    at: Tensor  # [M]
    inner: Differentiates


@dataclass(frozen=True)
class StopAtSuccess(OracleWrapper):
    """An oracle that queries a row only until one of its points succeeds.

    A point succeeds if it is misclassified, lies in the perturbation set and differs from the
    center. Rows that have succeeded are not queried again and cost nothing. For them the oracle
    returns success, the value -inf (which no attack prefers to an evaluated point) and a zero
    gradient.

    Attacks also evaluate points that they would not propose, such as the center, neighbors and
    points of wider balls, so an attack may discard a success. The successful points are kept here,
    and `finish` inserts them into the result.

    Use it for defenses that are deterministic and evaluate rows independently. Under noise, one
    chance error would end the search.
    """

    center: Tensor  # [N, ...] clean inputs
    space: Ball
    successes: _Successes
    rows: Tensor  # [N] positions of these rows in `successes`
    # The open rows by version of `successes`: recomputed only when a row succeeds.
    _open_rows: dict[int, _OpenRows] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @classmethod
    def of(cls, oracle: Differentiates, center: Tensor, space: Ball) -> StopAtSuccess:
        """Wrap an oracle.

        Args:
            oracle: the oracle, with independent rows.
            center: clean inputs, [N, ...].
            space: the perturbation set.

        Raises:
            ValueError: the rows of the oracle are coupled.
        """
        if oracle.coupled:
            raise ValueError(
                "rows of a coupled defense can only be evaluated together, so none of them can "
                "stop early. Use the oracle without StopAtSuccess."
            )
        n = len(center)
        none = torch.zeros(n, dtype=torch.bool, device=center.device)
        rows = torch.arange(n, device=center.device)
        return cls(oracle, center, space, _Successes(none, center), rows)

    @property
    def coupled(self) -> bool:
        return False

    @property
    def succeeded(self) -> Tensor:
        """[N] bool: rows for which a successful point was found."""
        return self.successes.found[self.rows]

    def finish(self, result: AttackResult) -> AttackResult:
        """The result of the attack with the successful points inserted.

        A successful point also becomes the point of highest loss if the attack proposes none but
        the center.
        """
        succeeded = per_example(self.succeeded, self.center)
        points = self.successes.points[self.rows]
        unmoved = (result.max_loss_point == self.center).flatten(1).all(1)
        return AttackResult(
            torch.where(succeeded, points, result.point),
            torch.where(
                succeeded & per_example(unmoved, self.center), points, result.max_loss_point
            ),
        )

    def __getitem__(self, rows: Tensor) -> StopAtSuccess:
        return replace(self, inner=self.inner[rows], center=self.center[rows], rows=self.rows[rows])

    def left(self) -> int:
        return self._open().inner.left()

    def allowance(self) -> Tensor:
        """[N] evaluations that remain for each row; without limit for rows that have succeeded."""
        remaining = self.inner.allowance()
        return torch.where(self.succeeded.to(remaining.device), 2**62, remaining)

    def decide(self, x: Tensor) -> Tensor:
        at, inner = self._open()
        success = inner.decide(self._part(x, at)) if len(at) else at.bool()
        self._record(at, x, success)
        return self._all(success, at, 1)

    def score(self, x: Tensor) -> Evaluation:
        at, inner = self._open()
        if not len(at):
            return self._recorded(at, x, Evaluation(x.new_zeros(0), at.bool()))
        return self._recorded(at, x, inner.score(self._part(x, at)))

    def gradient(self, x: Tensor) -> ValueAndGradient:
        at, inner = self._open()
        evaluation, grad = (
            inner.gradient(self._part(x, at))
            if len(at)
            else ValueAndGradient(Evaluation(x.new_zeros(0), at.bool()), x[at])
        )
        return ValueAndGradient(self._recorded(at, x, evaluation), self._all(grad, at, 0.0))

    def class_margins(self, x: Tensor) -> ValueAndGradient:
        """As `gradient`, but with margins of 0 for rows that have succeeded.

        Attacks divide margins by gradients, and infinite margins would give infinite steps.
        """
        at, inner = self._open()
        (value, success), grad = (
            inner.class_margins(self._part(x, at))
            if len(at)
            else ValueAndGradient(Evaluation(x.new_zeros(1, 0), at.bool()), x[None, at])
        )
        self._record(at, x, success)
        return ValueAndGradient(
            Evaluation(self._all(value, at, 0.0, dim=1), self._all(success, at, 1)),
            self._all(grad, at, 0.0, dim=1),
        )

    def _open(self) -> _OpenRows:
        version = self.successes.version
        if version not in self._open_rows:
            at = (~self.succeeded).nonzero()[:, 0]
            self._open_rows.clear()
            inner = self.inner if len(at) == len(self) else self.inner[at]
            self._open_rows[version] = _OpenRows(at, inner)
        return self._open_rows[version]

    def _part(self, x: Tensor, at: Tensor) -> Tensor:
        """The rows `at` of x, [N, ...]; x itself if these are all of them."""
        return x if len(at) == len(self) else x[at]

    def _recorded(self, at: Tensor, x: Tensor, evaluation: Evaluation) -> Evaluation:
        self._record(at, x, evaluation.success)
        return Evaluation(
            self._all(evaluation.value, at, -torch.inf), self._all(evaluation.success, at, 1)
        )

    def _record(self, at: Tensor, x: Tensor, success: Tensor) -> None:
        """Keep the successful points among those of the rows `at`."""
        if not success.any():
            return
        at = at[success]
        moved = (x[at] != self.center[at]).flatten(1).any(1)
        at = at[moved & self.space.contains(x[at], self.center[at])]
        rows = self.rows[at]
        self.successes.found = self.successes.found.index_fill(0, rows, True)
        self.successes.points = self.successes.points.index_copy(0, rows, x[at].detach())
        self.successes.version = self.successes.version + 1

    def _all(self, part: Tensor, at: Tensor, otherwise: float, dim: int = 0) -> Tensor:
        """A tensor with `part` on the rows `at` and `otherwise` on all others."""
        if len(at) == len(self):
            return part
        shape = [*part.shape[:dim], len(self), *part.shape[dim + 1 :]]
        return part.new_full(shape, otherwise).index_copy(dim, at, part)
