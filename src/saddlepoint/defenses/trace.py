"""The outputs of a defense: its intermediate results and its final one, as named views."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class View:
    """Named logits: those of an exit, a solver state, a purified copy or an adapted model."""

    name: str  # "exit/2", "solve/7", "purify/3"
    logits: Tensor  # [N, C]


@dataclass(frozen=True)
class Trace:
    """Views in the order in which they were computed.

    The last one is the final output unless the defense overrides `answer`.

    Args:
        views: at least one view, all with logits of the same shape.

    Raises:
        ValueError: there is no view.
    """

    views: tuple[View, ...]

    def __post_init__(self) -> None:
        if not self.views:
            raise ValueError(
                "a Trace needs at least one View, got none. "
                "Return `Trace((View('final', logits),))`."
            )

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the views, in order."""
        return tuple(view.name for view in self.views)

    @cached_property
    def logits(self) -> Tensor:
        """The logits of all views, [V, N, C]."""
        if len(self.views) == 1:
            return self.last[None]  # without a copy
        return torch.stack([view.logits for view in self.views])

    @property
    def last(self) -> Tensor:
        """The logits of the last view, [N, C]."""
        return self.views[-1].logits

    def select(self, names: Iterable[str]) -> Trace:
        """The trace with the named views only, in the order of this trace.

        Raises:
            ValueError: a name does not occur in this trace.
        """
        wanted = set(names)
        missing = wanted - set(self.names)
        if missing:
            raise ValueError(
                f"no view called {sorted(missing)}; this defense shows {list(self.names)}."
            )
        return Trace(tuple(view for view in self.views if view.name in wanted))


# Trace -> [N, C]: how the defender turns views into its output, a column of the matrix game.
Answer = Callable[[Trace], Tensor]


def view(name: str) -> Answer:
    """An `Answer` that returns the view of that name."""
    return lambda trace: trace.select([name]).last


def mean(*names: str) -> Answer:
    """An `Answer` that returns the mean logits of the named views, or of all views."""
    return lambda trace: (trace.select(names) if names else trace).logits.mean(0)
