"""Forward and backward passes per example."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class PassCost(NamedTuple):
    """Passes per example: an upper bound, since examples that are misclassified early cost less."""

    forward: int
    backward: int

    def times(self, count: int) -> PassCost:
        """The cost of `count` repetitions."""
        return PassCost(count * self.forward, count * self.backward)

    def plus_forward(self, forward: int) -> PassCost:
        """This cost and `forward` more forward passes."""
        return PassCost(self.forward + forward, self.backward)

    @property
    def total(self) -> int:
        """Forward and backward passes together."""
        return self.forward + self.backward

    @classmethod
    def sum(cls, parts: Iterable[PassCost]) -> PassCost:
        """The cost of all parts together."""
        parts = tuple(parts)
        forward = sum(part.forward for part in parts)
        backward = sum(part.backward for part in parts)
        return cls(forward, backward)
