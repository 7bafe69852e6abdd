"""A network seen, and steered, at its named layers: hooks that live as long as one pass of one thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any, cast

import torch
from torch import Tensor, nn

from saddlepoint.zoo.adaptive.learning import parts

INPUT = "input"  # the name of the images themselves, beside those of layers


def refuse_unknown(net: nn.Module, names: Iterable[str]) -> None:
    """A layer that the network does not have is refused; the nearest names are told."""
    layers = [INPUT, *(name for name, _ in net.named_modules() if name)]
    for name in names:
        if name not in layers:
            near = get_close_matches(name, layers, n=3, cutoff=0.3) or [INPUT, *(known for known, _ in net.named_children())]
            raise ValueError(f"the network has no layer called {name!r}. Nearest: {', '.join(map(repr, near))}.")


def refuse_training(net: nn.Module) -> None:
    if net.training:
        raise ValueError(
            "the network is in training mode, where batch statistics and dropout change its answers. Call net.eval() first."
        )


def steered(net: nn.Module, names: Sequence[str], steer: Callable[[str, Tensor], Tensor], x: Tensor) -> Tensor:
    """net(x) with what each named layer gives replaced by `steer(name, given)`; "input" stands for x itself."""
    reached: set[str] = set()

    def met(name: str, given: Tensor) -> Tensor:
        _refuse_twice(name, reached)
        reached.add(name)
        return steer(name, given).clone()  # a layer after it may work in place, and must not change what was seen here

    inner = [name for name in names if name != INPUT]
    with _hooked(net, inner, lambda name, given, out: met(name, out)):  # noqa: ARG005
        logits = net(met(INPUT, x) if INPUT in names else x)
    _refuse_unreached(inner, reached)
    return cast(Tensor, logits)


class Features:
    """[N, D]: what the network's last linear layer is given, or what the layer called `layer` gives, averaged over positions."""

    def __init__(self, net: nn.Module, layer: str | None = None) -> None:
        if layer is not None:
            refuse_unknown(net, [layer])
        self.net, self.layer, self._at = net, layer, layer if layer is not None else _last_linear(net)

    def __call__(self, x: Tensor) -> Tensor:
        found: dict[str, Tensor] = {}

        def note(name: str, given: Tensor, out: Tensor) -> Tensor:
            _refuse_twice(name, found)
            found[name] = out if self.layer is not None else given
            return out.clone()  # as above

        with _hooked(self.net, [self._at], note):
            self.net(x)
        _refuse_unreached([self._at], found)
        return _pooled(self._at, found[self._at])

    def of(self, x: Tensor) -> Tensor:
        """The features of a data set, without gradient."""
        with torch.no_grad():
            return torch.cat([self(part) for part in parts(x)])


def _pooled(name: str, h: Tensor) -> Tensor:
    if not isinstance(h, Tensor) or h.ndim not in (2, 3, 4):
        found = list(h.shape) if isinstance(h, Tensor) else type(h).__name__
        raise ValueError(f"layer {name!r} gives {found}; features are [N, D], tokens [N, T, D] or pictures [N, D, H, W].")
    return h.mean((2, 3)) if h.ndim == 4 else h.mean(1) if h.ndim == 3 else h


def _last_linear(net: nn.Module) -> str:
    linear = [name for name, module in net.named_modules() if isinstance(module, nn.Linear)]
    if not linear:
        raise ValueError("the network has no linear layer to take features from. Name the layer that gives them: layer='...'.")
    return str(linear[-1])


@contextmanager
def _hooked(net: nn.Module, names: Sequence[str], hook: Callable[[str, Tensor, Tensor], Tensor]) -> Iterator[None]:
    """`hook(name, given, out)` when a layer has answered; what it returns takes the place of `out`. No hook stays behind."""
    here, layers = threading.get_ident(), dict(net.named_modules())

    def bound(name: str) -> Callable[[nn.Module, Any, Tensor], Tensor | None]:
        def call(module: nn.Module, given: Any, out: Tensor) -> Tensor | None:  # noqa: ARG001
            return hook(name, given[0] if given else out, out) if threading.get_ident() == here else None

        return call

    handles = [layers[name].register_forward_hook(bound(name)) for name in names]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _refuse_twice(name: str, reached: Iterable[str]) -> None:
    if name in reached:
        raise ValueError(f"layer {name!r} is reached more than once in one forward pass. Choose one that is reached once.")


def _refuse_unreached(names: Iterable[str], reached: Iterable[str]) -> None:
    unreached = sorted(set(names) - set(reached))
    if unreached:
        raise ValueError(f"the forward pass never calls {unreached}. Choose layers that it calls as modules.")
