"""What an attacker may ask, and what it cost."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol, Self

import torch
from torch import Tensor

from saddlepoint.attacks.ensemble import Ensemble
from saddlepoint.attacks.objective import AttackObjective
from saddlepoint.defenses import Access
from saddlepoint.gradients import Estimator, Evaluation, ValueAndGradient
from saddlepoint.rng import Keys

ACCESS_LEVELS: tuple[Access, ...] = (
    "decision",
    "score",
    "gradient",
)  # each includes the ones before
_UNLIMITED = 2**62


def grants(access: Access, needed: Access) -> bool:
    return ACCESS_LEVELS.index(access) >= ACCESS_LEVELS.index(needed)


class BudgetExceeded(RuntimeError):  # noqa: N818
    """An attack asked for more queries than the threat model allows."""


@dataclass(frozen=True)
class Meter:
    """Passes spent per example. Its counters, and the tape of what was read, are all that an attacker changes."""

    forward: Tensor  # [N] int64
    backward: Tensor  # [N] int64
    inner: Tensor  # [N] int64: evaluations of f, and products with its Jacobian, in solves inside the passes of a defense
    limit: int | None = None

    @classmethod
    def of(cls, n: int, limit: int | None = None) -> Meter:
        forward, backward, inner = torch.zeros(3, n, dtype=torch.long).unbind()
        return cls(forward, backward, inner, limit)

    def charge(self, rows: Tensor, forward: int, backward: int) -> None:
        if forward > self.left(rows):
            asked = int(self.forward[rows].amax()) + forward
            raise BudgetExceeded(
                f"the threat model allows {self.limit} queries per example, the attack asked for {asked}. "
                "Give the attack fewer steps or the threat model a larger budget."
            )
        self.forward[rows] += forward
        self.backward[rows] += backward

    def note(self, rows: Tensor, inner: Tensor) -> None:
        self.inner[rows] += inner.to(self.inner)

    def left(self, rows: Tensor) -> int:
        """Forward passes that every one of these rows may still spend."""
        return (
            _UNLIMITED if self.limit is None or not len(rows) else int(self.allowance(rows).amin())
        )

    def allowance(self, rows: Tensor) -> Tensor:
        """[N] forward passes that each of these rows may still spend."""
        if self.limit is None:
            return torch.full_like(rows, _UNLIMITED)
        return self.limit - self.forward[rows]


class Decides(Protocol):
    """An oracle that says right or wrong."""

    @property
    def coupled(self) -> bool: ...
    def decide(self, x: Tensor) -> Tensor: ...
    def left(self) -> int: ...
    def allowance(self) -> Tensor: ...
    def __len__(self) -> int: ...
    def __getitem__(self, rows: Tensor) -> Decides: ...


class Scores(Decides, Protocol):
    """An oracle that also says how wrong."""

    def score(self, x: Tensor) -> Evaluation: ...
    def __getitem__(self, rows: Tensor) -> Scores: ...


class Differentiates(Scores, Protocol):
    """An oracle that also says which way is worse."""

    def gradient(self, x: Tensor) -> ValueAndGradient: ...
    def class_margins(self, x: Tensor) -> ValueAndGradient: ...
    def __getitem__(self, rows: Tensor) -> Differentiates: ...


@dataclass(frozen=True)
class Oracle:
    """A goal with a price tag. Attacks see this and nothing else: no model, no labels, no views."""

    objective: AttackObjective | Ensemble
    estimator: Estimator
    meter: Meter
    rows: Tensor  # [N] which examples of the metered batch these are, on the meter's device
    keys: Keys  # [N]
    access: Access = "gradient"
    coupled: bool = False  # does one example's value depend on the others?

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, rows: Tensor) -> Oracle:
        """The same seat for some of the rows. Rows of a coupled batch cannot be asked about alone."""
        if self.coupled:
            raise ValueError(
                "rows of a coupled defense answer only together; an attack may restrict an oracle only when `coupled` is False."
            )
        return replace(
            self,
            objective=self.objective[rows],
            rows=self.rows[rows.to(self.rows.device)],
            keys=self.keys[rows],
        )

    def left(self) -> int:
        """Readings that can still be paid for."""
        return self.meter.left(self.rows) // self.objective.cost(self.estimator)

    def allowance(self) -> Tensor:
        """[N] readings that each row can still pay for; rows of one batch may have spent differently."""
        return self.meter.allowance(self.rows) // self.objective.cost(self.estimator)

    def decide(self, x: Tensor) -> Tensor:  # [N] bool
        return self._read(x).success

    def score(self, x: Tensor) -> Evaluation:
        self._require("score", "scores")
        return self._read(x)

    def gradient(self, x: Tensor) -> ValueAndGradient:
        self._require("gradient", "gradients")
        forward, backward = self.objective.gradient_cost(self.estimator)
        keys = self._pay(forward, backward)
        return _finite(self.objective.value_and_grad(self.estimator, x, keys))

    def class_margins(self, x: Tensor) -> ValueAndGradient:
        """Margins of all other classes and their gradients: one forward pass, a backward pass per class."""
        self._require("gradient", "gradients")
        forward, backward = self.objective.gradient_cost(self.estimator)
        keys = self._pay(forward, 0)
        slope = _finite(self.objective.class_margin_gradients(self.estimator, x, keys))
        self.meter.charge(self.rows, 0, backward * len(slope.grad))
        return slope

    def _read(self, x: Tensor) -> Evaluation:
        keys = self._pay(self.objective.cost(self.estimator), 0)
        return self.objective.evaluate(self.estimator, x, keys)

    def _pay(self, forward: int, backward: int) -> Keys:
        # Fresh coins at every query, numbered by the row's own count: a row's noise does not depend on who else is still playing.
        count = self.meter.forward[self.rows].to(self.keys.state)
        self.meter.charge(self.rows, forward, backward)
        return self.keys.fold_in(count)

    def _require(self, needed: Access, what: str) -> None:
        if not grants(self.access, needed):
            raise PermissionError(
                f"this attack asks for {what}, but the threat model grants {self.access} access only."
            )


@dataclass(frozen=True)
class OracleWrapper:
    """An oracle around another one: everything is forwarded unless a subclass overrides it."""

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


def _finite(slope: ValueAndGradient) -> ValueAndGradient:
    """A gradient that is not a number points nowhere: zero there, or the next point would not be a number either."""
    return slope._replace(grad=slope.grad.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0))
