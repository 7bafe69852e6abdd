"""What a defender shows: every answer it held on the way to its final one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class View:
    """One answer the defender could give: an exit, a solver state, a purified copy, a transduced model."""

    name: str  # "exit/2", "solve/7", "purify/3"
    logits: Tensor  # [N, C]


@dataclass(frozen=True)
class Trace:
    """Views in the order in which they were reached; the last one is the final answer unless the defense says otherwise."""

    views: tuple[View, ...]

    def __post_init__(self) -> None:
        if not self.views:
            raise ValueError(
                "a Trace needs at least one View, got none. Return `Trace((View('final', logits),))`."
            )

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(view.name for view in self.views)

    @cached_property
    def logits(self) -> Tensor:  # [V, N, C]
        return torch.stack([view.logits for view in self.views])

    @property
    def last(self) -> Tensor:  # [N, C]
        return self.views[-1].logits

    def select(self, names: Iterable[str]) -> Trace:
        """The trace with the named views only, in their own order."""
        wanted = set(names)
        missing = wanted - set(self.names)
        if missing:
            raise ValueError(
                f"no view called {sorted(missing)}; this defense shows {list(self.names)}."
            )
        return Trace(tuple(view for view in self.views if view.name in wanted))


Answer = Callable[
    [Trace], Tensor
]  # -> [N, C]: what the defender answers with, a column of the game


def view(name: str) -> Answer:
    """Answer with the view of that name."""
    return lambda trace: trace.select([name]).last


def mean(*names: str) -> Answer:
    """Answer with the mean logits of the named views, or of all."""
    return lambda trace: (trace.select(names) if names else trace).logits.mean(0)
