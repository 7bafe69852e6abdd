"""Read and replace the inputs and outputs of named layers, and extract features.

Hooks are installed for one forward pass of one thread and removed afterwards. The network can
therefore be copied, saved and used without them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any

import torch
from torch import Tensor, nn

from saddlepoint.phrases import count, how_often

# (name, input of the layer, output of the layer) -> a new output, or None to keep the output.
LayerHook = Callable[[str, Tensor, Tensor], Tensor | None]


@contextmanager
def reaching(net: nn.Module, names: Sequence[str], reached: LayerHook) -> Iterator[None]:
    """Call `reached(name, input, output)` after every call of a named layer inside the block.

    Only forward passes of the current thread are affected. All hooks are removed at the end.

    Args:
        net: The network.
        names: Names of layers, as in `net.named_modules()`.
        reached: Its result replaces the output of the layer; None keeps the output.
    """
    current_thread = threading.get_ident()
    layers = dict(net.named_modules())

    def hook(name: str) -> Callable[[nn.Module, Any, Tensor], Tensor | None]:
        def call(module: nn.Module, inputs: Any, out: Tensor) -> Tensor | None:  # noqa: ARG001
            if threading.get_ident() != current_thread:
                return None
            return reached(name, inputs[0] if inputs else out, out)

        return call

    handles = [layers[name].register_forward_hook(hook(name)) for name in names]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def penultimate(net: nn.Module) -> str:
    """Return the name of the last linear layer; its input is the output of the penultimate layer.

    Raises:
        ValueError: The network has no linear layer.
    """
    linear = [name for name, module in net.named_modules() if isinstance(module, nn.Linear)]
    if not linear:
        raise ValueError(
            f"{type(net).__name__} has no linear layer, so the penultimate layer is not defined. "
            "Use a network that ends in nn.Linear, or name the layer that receives the features."
        )
    return str(linear[-1])


def features(net: nn.Module, x: Tensor, layer: str, *, batch_size: int = 256) -> Tensor:
    """Return the inputs [N, F] of a layer for the examples x, without gradient.

    The network stays in its current mode.

    Args:
        net: The network.
        x: Examples [N, ...].
        layer: Name of the layer, as in `net.named_modules()`. `penultimate(net)` names the last
            linear layer.
        batch_size: Number of examples per forward pass.

    Raises:
        ValueError: The layer is not called exactly once in a forward pass.
    """
    found = list[Tensor]()

    def record(name: str, entering: Tensor, out: Tensor) -> None:  # noqa: ARG001
        found.append(entering.flatten(1))

    parts = torch.split(x, batch_size)
    with torch.no_grad(), reaching(net, [layer], record):
        for part in parts:
            net(part)
    if len(found) != len(parts):
        raise ValueError(
            f"the layer was called {how_often(len(found))} in {count(len(parts), 'forward pass')}. "
            "Choose a layer that is called once."
        )
    return torch.cat(found)


def check_known_layers(net: nn.Module, names: Iterable[str], *, beside: Sequence[str] = ()) -> None:
    """Check that the network has layers of these names.

    Args:
        net: The network.
        names: The names to check.
        beside: Other names that are allowed as well.

    Raises:
        ValueError: A name is unknown. The message lists similar names.
    """
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


def check_called_once(name: str, reached: Iterable[str]) -> None:
    """Raise a ValueError if a layer has already been called in this forward pass."""
    if name in reached:
        raise ValueError(
            f"layer {name!r} is called more than once in one forward pass. "
            "Choose a layer that is called once."
        )


def check_called(names: Iterable[str], reached: Iterable[str]) -> None:
    """Raise a ValueError if a layer was not called in the forward pass."""
    unreached = sorted(set(names) - set(reached))
    if unreached:
        raise ValueError(
            f"the forward pass never calls {unreached}. Choose layers that it calls as modules."
        )
