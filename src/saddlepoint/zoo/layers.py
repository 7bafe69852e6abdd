"""The layers of a network by their names: hooks that live as long as one pass of one thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any

from torch import Tensor, nn

Reached = Callable[
    [str, Tensor, Tensor], Tensor | None
]  # (name, what it was given, what it gives) -> what it gives instead


@contextmanager
def reaching(net: nn.Module, names: Sequence[str], reached: Reached) -> Iterator[None]:
    """`reached(name, given, out)` when a named layer has answered, for passes of this thread only; no hook stays behind.

    What it returns takes the place of `out`; None leaves it. Hooks that live as long as a pass leave a network that can be copied,
    saved and used without them.
    """
    here = threading.get_ident()
    layers = dict(net.named_modules())

    def hook(name: str) -> Callable[[nn.Module, Any, Tensor], Tensor | None]:
        def call(module: nn.Module, given: Any, out: Tensor) -> Tensor | None:  # noqa: ARG001
            return (
                reached(name, given[0] if given else out, out)
                if threading.get_ident() == here
                else None
            )

        return call

    handles = [layers[name].register_forward_hook(hook(name)) for name in names]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def refuse_unknown(net: nn.Module, names: Iterable[str], *, beside: Sequence[str] = ()) -> None:
    """A layer that the network does not have is refused, unless it is one of `beside`; the nearest names are told."""
    layers = [*beside, *(name for name, _ in net.named_modules() if name)]
    for name in names:
        if name not in layers:
            near = get_close_matches(name, layers, n=3, cutoff=0.3) or [
                *beside,
                *(known for known, _ in net.named_children()),
            ]
            raise ValueError(
                f"the network has no layer called {name!r}. Nearest: {', '.join(map(repr, near))}."
            )


def refuse_twice(name: str, reached: Iterable[str]) -> None:
    if name in reached:
        raise ValueError(
            f"layer {name!r} is reached more than once in one forward pass. Choose one that is reached once."
        )


def refuse_unreached(names: Iterable[str], reached: Iterable[str]) -> None:
    unreached = sorted(set(names) - set(reached))
    if unreached:
        raise ValueError(
            f"the forward pass never calls {unreached}. Choose layers that it calls as modules."
        )
