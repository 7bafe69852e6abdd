"""Rules: the backward pass of a named site inside the forward pass of a defense."""

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
    """x itself, the default surrogate of BPDA."""
    return x


class Rule(ABC):
    """The backward pass of one site.

    A rule does not change the forward value. The one exception is `Phantom(at="unrolled")`.
    """

    approximate: ClassVar[bool] = False  # it replaces the backward pass by an approximation

    @abstractmethod
    def apply(self, fn: Map, x: Tensor) -> Tensor:
        """fn(x), with the gradient of this rule.

        Args:
            fn: the function of the site (`Context.through`).
            x: its input, [N, ...].
        """

    def attach(self, solve: Solve) -> Solution:  # noqa: ARG002
        """Run a solve (`Context.solve`) and return states with the gradients of this rule.

        Raises:
            TypeError: the rule is not defined for solves.
        """
        raise TypeError(
            f"{type(self).__name__} cannot differentiate a solve. Use Implicit, Phantom, "
            "SharedInverse, SimultaneousAdjoint, or Exact to differentiate the solver's own steps."
        )


@dataclass(frozen=True)
class Exact(Rule):
    """Ordinary backpropagation; through a solve, backpropagation through every step it made."""

    def apply(self, fn: Map, x: Tensor) -> Tensor:
        return fn(x)

    def attach(self, solve: Solve) -> Solution:
        return solve.run()


@dataclass(frozen=True)
class Checkpointed(Rule):
    """The exact gradient with the memory of one step: the backward pass runs the site again.

    Chen et al. 2016. The random keys of a site are a function of its place in the trace
    (`Context.through`), so the second run draws the same numbers as the first. Hidden randomness of
    a module is replayed as well, through the generator state of torch. In a solve each evaluation
    of f is one step.
    """

    def apply(self, fn: Map, x: Tensor) -> Tensor:
        return cast(Tensor, checkpoint(fn, x, use_reentrant=False))

    def attach(self, solve: Solve) -> Solution:
        def cell(z: Tensor, x: Tensor, rows: Tensor) -> Tensor:
            return cast(Tensor, checkpoint(solve.cell, z, x, rows, use_reentrant=False))

        return replace(solve, cell=cell).run()


@dataclass(frozen=True)
class BPDA(Rule):
    """Backward pass differentiable approximation: forward `fn`, backward through `surrogate`.

    Athalye, Carlini & Wagner 2018, Sec. 4.1.

    Args:
        surrogate: a differentiable function of the site's input with the shape of the site's
            output; default the identity.
    """

    surrogate: Map = identity
    approximate: ClassVar[bool] = True

    def apply(self, fn: Map, x: Tensor) -> Tensor:
        with torch.no_grad():
            value = fn(x)
        if not (torch.is_grad_enabled() and x.requires_grad):
            return value
        return self._with_surrogate_gradient(self.surrogate(x), value)

    def attach(self, solve: Solve) -> Solution:
        recording = torch.is_grad_enabled() and solve.x.requires_grad
        with torch.no_grad():
            solution = solve.run(states=solve.read if recording else ())
        if not recording:
            return solution
        surrogate = self.surrogate(solve.x)
        states = {
            n: self._with_surrogate_gradient(surrogate, z) for n, z in solution.states.items()
        }
        best = self._with_surrogate_gradient(surrogate, solution.best)
        return solve.with_states(solution, states, best)

    def _with_surrogate_gradient(self, surrogate: Tensor, value: Tensor) -> Tensor:
        if surrogate.shape != value.shape:
            raise ValueError(
                f"the surrogate of BPDA returns shape {tuple(surrogate.shape)}, but the site "
                f"returns {tuple(value.shape)}. Pass a surrogate with the shape of the site's "
                "output."
            )
        return straight_through(surrogate, value)


def straight_through(surrogate: Tensor, value: Tensor) -> Tensor:
    """`value` in the forward pass, the gradient of `surrogate` in the backward pass.

    Args:
        surrogate: the tensor that receives the cotangent, of the shape of `value`.
        value: the tensor that is returned, exact to the last bit.
    """
    return cast(Tensor, _StraightThrough.apply(surrogate, value))  # type: ignore[no-untyped-call]


class _StraightThrough(torch.autograd.Function):
    # The forward value is exact to the last bit; x + (value - x) would round.

    @staticmethod
    def forward(ctx: Any, surrogate: Tensor, value: Tensor) -> Tensor:  # noqa: ARG004
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *cotangent: Tensor) -> tuple[Tensor, None]:  # noqa: ARG004
        return cotangent[0], None
