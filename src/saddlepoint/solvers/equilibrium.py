"""Who answers with a fixed point, and can tell how near it came."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import Tensor


class ConvergedState(Protocol):
    """How the solves of a batch ended, whatever else is told of them."""

    @property
    def residual(
        self,
    ) -> Tensor: ...  # [N] relative: ||f(z) - z|| / ||f(z)||, or what the method calls so


@runtime_checkable
class EquilibriumModel(Protocol):
    """A network or defense whose answer is made of a fixed point, found anew for every input."""

    def settled(self, x: Tensor) -> ConvergedState: ...
