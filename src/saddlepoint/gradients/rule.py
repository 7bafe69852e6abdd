"""How a cotangent crosses a named site inside a defence's forward pass."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

Map = Callable[[Tensor], Tensor]


def identity(x: Tensor) -> Tensor:
    return x


class Rule(ABC):
    """The backward pass of one site. A rule never changes the forward value."""

    @abstractmethod
    def apply(self, fn: Map, x: Tensor) -> Tensor:
        """fn(x), carrying this rule's gradient."""


@dataclass(frozen=True)
class Exact(Rule):
    """Differentiate what was run."""

    def apply(self, fn: Map, x: Tensor) -> Tensor:
        return fn(x)


@dataclass(frozen=True)
class Checkpointed(Rule):
    """The exact gradient in the memory of one step: the site is run again in the backward pass (Chen et al. 2016).

    A site's coins are a function of its place in the trace (`Context.through`), so the second run draws what the first one drew.
    Hidden randomness of a module is replayed too, through torch's own state.
    """

    def apply(self, fn: Map, x: Tensor) -> Tensor:
        return cast(Tensor, checkpoint(fn, x, use_reentrant=False))


@dataclass(frozen=True)
class BPDA(Rule):
    """Forward `fn`, backward through `surrogate` (Athalye, Carlini & Wagner 2018, Sec. 4.1); the identity by default."""

    surrogate: Map = identity

    def apply(self, fn: Map, x: Tensor) -> Tensor:
        with torch.no_grad():
            value = fn(x)
        if not (torch.is_grad_enabled() and x.requires_grad):
            return value
        stand_in = self.surrogate(x)
        if stand_in.shape != value.shape:
            raise ValueError(
                f"BPDA's surrogate gives shape {tuple(stand_in.shape)}, but the site gives {tuple(value.shape)}. "
                "Pass a surrogate with the shape of the site's output."
            )
        return cast(Tensor, _StraightThrough.apply(stand_in, value))  # type: ignore[no-untyped-call]


class _StraightThrough(torch.autograd.Function):
    """`value` going forward to the last bit (x + (value - x) would round), `stand_in` going backward."""

    @staticmethod
    def forward(ctx: Any, stand_in: Tensor, value: Tensor) -> Tensor:  # noqa: ARG004
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *cotangent: Tensor) -> tuple[Tensor, None]:  # noqa: ARG004
        return cotangent[0], None
