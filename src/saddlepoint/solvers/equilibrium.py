"""The interface of models that output a function of a fixed point and can report its residual."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import Tensor


class ConvergedState(Protocol):
    """The end of the solves of one batch."""

    @property
    def residual(self) -> Tensor:
        """[N] relative residual ||f(z) - z|| / ||f(z)||, or the residual that the method uses."""
        ...


@runtime_checkable
class EquilibriumModel(Protocol):
    """A network or defense that solves for a fixed point for every input."""

    def convergence(self, x: Tensor) -> ConvergedState:
        """Solve for the fixed points of the inputs `x`, [N, ...], and report their residuals."""
        ...
