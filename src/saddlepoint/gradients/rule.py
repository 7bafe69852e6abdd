"""How a cotangent crosses a named site inside a defense's forward pass."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from saddlepoint.gradients.solve import Solve
from saddlepoint.solvers import Solution

Map = Callable[[Tensor], Tensor]


def identity(x: Tensor) -> Tensor:
    return x


class Rule(ABC):
    """The backward pass of one site. A rule never changes the forward value."""

    approximate: ClassVar[bool] = False  # it replaces the backward pass by an approximation

    @abstractmethod
    def apply(self, fn: Map, x: Tensor) -> Tensor:
        """fn(x), carrying this rule's gradient."""

    def attach(self, solve: Solve) -> Solution:  # noqa: ARG002
        """The solution, its states carrying this rule's gradients."""
        raise TypeError(
            f"{type(self).__name__} does not say how a cotangent crosses a solve. Use Implicit, Phantom, SharedInverse, "
            "SimultaneousAdjoint, or Exact to differentiate the solver's own steps."
        )


@dataclass(frozen=True)
class Exact(Rule):
    """Differentiate what was run; of a solve, every step that the solver made."""

    def apply(self, fn: Map, x: Tensor) -> Tensor:
        return fn(x)

    def attach(self, solve: Solve) -> Solution:
        return solve.run()


@dataclass(frozen=True)
class Checkpointed(Rule):
    """The exact gradient in the memory of one step: the site is run again in the backward pass (Chen et al. 2016).

    A site's coins are a function of its place in the trace (`Context.through`), so the second run draws what the first one drew.
    Hidden randomness of a module is replayed too, through torch's own state. In a solve each evaluation of f is such a step.
    """

    def apply(self, fn: Map, x: Tensor) -> Tensor:
        return cast(Tensor, checkpoint(fn, x, use_reentrant=False))

    def attach(self, solve: Solve) -> Solution:
        def cell(z: Tensor, x: Tensor, rows: Tensor) -> Tensor:
            return cast(Tensor, checkpoint(solve.cell, z, x, rows, use_reentrant=False))

        return replace(solve, cell=cell).run()


@dataclass(frozen=True)
class BPDA(Rule):
    """Forward `fn`, backward through `surrogate` (Athalye, Carlini & Wagner 2018, Sec. 4.1); the identity by default."""

    surrogate: Map = identity
    approximate: ClassVar[bool] = True

    def apply(self, fn: Map, x: Tensor) -> Tensor:
        with torch.no_grad():
            value = fn(x)
        if not (torch.is_grad_enabled() and x.requires_grad):
            return value
        return self._standing_in(self.surrogate(x), value)

    def attach(self, solve: Solve) -> Solution:
        recording = torch.is_grad_enabled() and solve.x.requires_grad
        with torch.no_grad():
            solution = solve.run(states=solve.read if recording else ())
        if not recording:
            return solution
        stand_in = self.surrogate(solve.x)
        states = {n: self._standing_in(stand_in, z) for n, z in solution.states.items()}
        return solve.shown(solution, states, self._standing_in(stand_in, solution.best))

    def _standing_in(self, stand_in: Tensor, value: Tensor) -> Tensor:
        if stand_in.shape != value.shape:
            raise ValueError(
                f"BPDA's surrogate gives shape {tuple(stand_in.shape)}, but the site gives {tuple(value.shape)}. "
                "Pass a surrogate with the shape of the site's output."
            )
        return straight_through(stand_in, value)


def straight_through(stand_in: Tensor, value: Tensor) -> Tensor:
    """`value` going forward, `stand_in` going backward."""
    return cast(Tensor, _StraightThrough.apply(stand_in, value))  # type: ignore[no-untyped-call]


class _StraightThrough(torch.autograd.Function):
    """`value` going forward to the last bit (x + (value - x) would round), `stand_in` going backward."""

    @staticmethod
    def forward(ctx: Any, stand_in: Tensor, value: Tensor) -> Tensor:  # noqa: ARG004
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *cotangent: Tensor) -> tuple[Tensor, None]:  # noqa: ARG004
        return cotangent[0], None
