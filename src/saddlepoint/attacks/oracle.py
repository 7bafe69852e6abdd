"""Oracles: what an attack may query, and meters that count the passes it used."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Protocol, Self

import torch
from torch import Tensor

from saddlepoint import phrases
from saddlepoint.attacks.ensemble import Ensemble
from saddlepoint.attacks.objective import AttackObjective
from saddlepoint.attacks.projections import reading_is_free
from saddlepoint.defenses import Access
from saddlepoint.gradients import Estimator, Evaluation, ValueAndGradient
from saddlepoint.rng import Keys

# Each level includes the ones before it.
ACCESS_LEVELS: tuple[Access, ...] = ("decision", "score", "gradient")
_UNLIMITED = 2**62


def grants(access: Access, needed: Access) -> bool:
    """Whether the access level `access` includes the level `needed`."""
    return ACCESS_LEVELS.index(access) >= ACCESS_LEVELS.index(needed)


class BudgetExceeded(RuntimeError):  # noqa: N818
    """An attack needs more queries than the threat model allows."""


@dataclass(frozen=True)
class Meter:
    """Counts the passes used per example.

    The counters are updated in place. They and the history of the attack are the only state that a
    query changes.
    """

    forward: Tensor  # [N] int64, forward passes
    backward: Tensor  # [N] int64, backward passes
    # [N] int64, work of fixed-point solves inside the passes: evaluations of f and products with
    # its Jacobian.
    inner: Tensor
    limit: int | None = None  # most forward passes per example; None: unlimited

    @classmethod
    def of(cls, n: int, limit: int | None = None) -> Meter:
        """A meter at zero for `n` examples with at most `limit` forward passes each."""
        forward, backward, inner = torch.zeros(3, n, dtype=torch.long).unbind()
        return cls(forward, backward, inner, limit)

    def charge(self, rows: Tensor, forward: int, backward: int) -> None:
        """Add passes to the counters of these rows, [M].

        Raises:
            BudgetExceeded: a row would use more forward passes than the limit.
        """
        if forward > self.left(rows):
            requested = int(self.forward[rows].amax()) + forward
            raise BudgetExceeded(
                f"the threat model allows {phrases.count(self.limit or 0, 'query')} per example, "
                f"the attack asked for {phrases.whole(requested)}. "
                "Give the attack fewer steps or the threat model a larger budget."
            )
        # A row may occur more than once, if several of its points are evaluated together.
        once = torch.ones_like(rows)
        for counter, passes in ((self.forward, forward), (self.backward, backward)):
            if passes:
                counter.index_add_(0, rows, once, alpha=passes)

    def note(self, rows: Tensor, inner: Tensor) -> None:
        """Add work of inner solves, [M], to these rows, [M]."""
        self.inner[rows] += inner.to(self.inner)

    def left(self, rows: Tensor) -> int:
        """Forward passes that remain for each of these rows, [M]: the minimum over them."""
        if self.limit is None or not len(rows):
            return _UNLIMITED
        return int(self.allowance(rows).amin())

    def allowance(self, rows: Tensor) -> Tensor:
        """[M] forward passes that remain for each of these rows, [M]."""
        if self.limit is None:
            return torch.full_like(rows, _UNLIMITED)
        return self.limit - self.forward[rows]


class Decides(Protocol):
    """An oracle that returns decisions."""

    @property
    def coupled(self) -> bool:
        """Whether the value of an example depends on the other examples of the batch."""
        ...

    def decide(self, x: Tensor) -> Tensor:
        """[N] bool: which of the points, [N, ...], are misclassified. One query per example."""
        ...

    def left(self) -> int:
        """The number of queries that remain for every example."""
        ...

    def allowance(self) -> Tensor:
        """[N] queries that remain for each example."""
        ...

    def __len__(self) -> int: ...
    def __getitem__(self, rows: Tensor) -> Decides: ...


class Scores(Decides, Protocol):
    """An oracle that also returns values of the objective."""

    def score(self, x: Tensor) -> Evaluation:
        """Value and success at the points x, [N, ...]. One query per example."""
        ...

    def __getitem__(self, rows: Tensor) -> Scores: ...


class Differentiates(Scores, Protocol):
    """An oracle that also returns gradients."""

    def gradient(self, x: Tensor) -> ValueAndGradient:
        """Value, success and gradient at the points x, [N, ...]. One query per example."""
        ...

    def class_margins(self, x: Tensor) -> ValueAndGradient:
        """Margins of all other classes, [C - 1, N], with their gradients, [C - 1, N, ...]."""
        ...

    def __getitem__(self, rows: Tensor) -> Differentiates: ...


@dataclass(frozen=True)
class Oracle:
    """Evaluates the attack objective and counts passes.

    It is all that an attack has access to: no model, no labels, no views.
    """

    objective: AttackObjective | Ensemble
    estimator: Estimator
    meter: Meter
    rows: Tensor  # [N] positions of these examples in the meter, on its device
    keys: Keys  # [N] random keys
    access: Access = "gradient"  # what the threat model grants
    coupled: bool = False  # the value of an example depends on the others

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, rows: Tensor) -> Oracle:
        """The same oracle for some of the rows: indices [M] or a mask [N].

        Raises:
            ValueError: rows are coupled, so they can only be evaluated together.
        """
        if self.coupled:
            raise ValueError(
                "rows of a coupled defense can only be evaluated together; "
                "an attack may restrict an oracle only if `coupled` is False."
            )
        return replace(
            self,
            objective=self.objective[rows],
            rows=self.rows[rows.to(self.rows.device)],
            keys=self.keys[rows],
        )

    def left(self) -> int:
        """Evaluations that remain for every example."""
        return self.meter.left(self.rows) // self.objective.cost(self.estimator)

    def allowance(self) -> Tensor:
        """[N] evaluations that remain for each example; rows may have used different numbers."""
        return self.meter.allowance(self.rows) // self.objective.cost(self.estimator)

    def decide(self, x: Tensor) -> Tensor:
        """[N] bool: which of the points x, [N, ...], are misclassified."""
        return self._evaluate(x).success

    def score(self, x: Tensor) -> Evaluation:
        """Value and success at the points x, [N, ...].

        Raises:
            PermissionError: the threat model grants decisions only.
        """
        self._require("score", "scores")
        return self._evaluate(x)

    def gradient(self, x: Tensor) -> ValueAndGradient:
        """Value, success and gradient at the points x, [N, ...].

        Raises:
            PermissionError: the threat model does not grant gradients.
        """
        self._require("gradient", "gradients")
        forward, backward = self.objective.gradient_cost(self.estimator)
        keys = self._charge(forward, backward)
        return _finite(self.objective.value_and_grad(self.estimator, x, keys))

    def class_margins(self, x: Tensor) -> ValueAndGradient:
        """Margins of all other classes, [C - 1, N], and their gradients, [C - 1, N, ...].

        Costs one forward pass, and one backward pass per class.

        Raises:
            PermissionError: the threat model does not grant gradients.
        """
        self._require("gradient", "gradients")
        forward, backward = self.objective.gradient_cost(self.estimator)
        keys = self._charge(forward, 0)
        result = _finite(self.objective.class_margin_gradients(self.estimator, x, keys))
        self.meter.charge(self.rows, 0, backward * len(result.grad))
        return result

    def _evaluate(self, x: Tensor) -> Evaluation:
        keys = self._charge(self.objective.cost(self.estimator), 0)
        return self.objective.evaluate(self.estimator, x, keys)

    def _charge(self, forward: int, backward: int) -> Keys:
        """Charge the passes of a query and return its random keys."""
        # New keys for every query, numbered by the row's own count of passes: the noise of a row
        # does not depend on which other rows are still attacked.
        count = self.meter.forward.index_select(0, self.rows).to(self.keys.base)
        self.meter.charge(self.rows, forward, backward)
        return self.keys.fold_in(count)

    def _require(self, needed: Access, what: str) -> None:
        if not grants(self.access, needed):
            raise PermissionError(
                f"this attack asks for {what}, but the threat model grants {self.access} access "
                "only."
            )


@dataclass(frozen=True)
class OracleWrapper:
    """An oracle around another one: everything is forwarded unless a subclass overrides it.

    Args:
        inner: the wrapped oracle.
    """

    inner: Differentiates

    @property
    def coupled(self) -> bool:
        return self.inner.coupled

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, rows: Tensor) -> Self:
        """The same wrapper for some of the rows. Wrappers with values per row override this."""
        return replace(self, inner=self.inner[rows])

    def left(self) -> int:
        return self.inner.left()

    def allowance(self) -> Tensor:
        return self.inner.allowance()

    def decide(self, x: Tensor) -> Tensor:
        return self.inner.decide(x)

    def score(self, x: Tensor) -> Evaluation:
        return self.inner.score(x)

    def gradient(self, x: Tensor) -> ValueAndGradient:
        return self.inner.gradient(x)

    def class_margins(self, x: Tensor) -> ValueAndGradient:
        return self.inner.class_margins(x)


def _finite(result: ValueAndGradient) -> ValueAndGradient:
    """Replace NaN and infinite gradient entries by zero, so that the next point is finite."""
    # A finite sum is read faster than all entries are replaced.
    if reading_is_free(result.grad.device) and math.isfinite(result.grad.sum()):
        return result
    return result._replace(grad=result.grad.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0))
