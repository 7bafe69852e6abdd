"""A network seen, and steered, at its named layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from saddlepoint.zoo.adaptive.learning import parts
from saddlepoint.zoo.layers import reaching, refuse_twice, refuse_unknown, refuse_unreached

INPUT = "input"  # the name of the images themselves, beside those of layers


def refuse_training(net: nn.Module) -> None:
    if net.training:
        raise ValueError(
            "the network is in training mode, where batch statistics and dropout change its answers. Call net.eval() first."
        )


def steered(
    net: nn.Module, names: Sequence[str], steer: Callable[[str, Tensor], Tensor], x: Tensor
) -> Tensor:
    """net(x) with what each named layer gives replaced by `steer(name, given)`; "input" stands for x itself."""
    reached: set[str] = set()

    def met(name: str, given: Tensor) -> Tensor:
        refuse_twice(name, reached)
        reached.add(name)
        return steer(
            name, given
        ).clone()  # a layer after it may work in place, and must not change what was seen here

    inner = [name for name in names if name != INPUT]
    with reaching(net, inner, lambda name, given, out: met(name, out)):  # noqa: ARG005
        logits = net(met(INPUT, x) if INPUT in names else x)
    refuse_unreached(inner, reached)
    return cast(Tensor, logits)


class Features:
    """[N, D]: what the network's last linear layer is given, or what the layer called `layer` gives, averaged over positions."""

    def __init__(self, net: nn.Module, layer: str | None = None) -> None:
        if layer is not None:
            refuse_unknown(net, [layer])
        self.net = net
        self.layer = layer
        self._at = layer if layer is not None else _last_linear(net)

    def __call__(self, x: Tensor) -> Tensor:
        found: dict[str, Tensor] = {}

        def note(name: str, given: Tensor, out: Tensor) -> Tensor:
            refuse_twice(name, found)
            found[name] = out if self.layer is not None else given
            return out.clone()  # as above

        with reaching(self.net, [self._at], note):
            self.net(x)
        refuse_unreached([self._at], found)
        return _pooled(self._at, found[self._at])

    def of(self, x: Tensor) -> Tensor:
        """The features of a data set, without gradient."""
        with torch.no_grad():
            return torch.cat([self(part) for part in parts(x)])


def _pooled(name: str, h: Tensor) -> Tensor:
    if not isinstance(h, Tensor) or h.ndim not in (2, 3, 4):
        found = list(h.shape) if isinstance(h, Tensor) else type(h).__name__
        raise ValueError(
            f"layer {name!r} gives {found}; features are [N, D], tokens [N, T, D] or pictures [N, D, H, W]."
        )
    return h.mean((2, 3)) if h.ndim == 4 else h.mean(1) if h.ndim == 3 else h


def _last_linear(net: nn.Module) -> str:
    linear = [name for name, module in net.named_modules() if isinstance(module, nn.Linear)]
    if not linear:
        raise ValueError(
            "the network has no linear layer to take features from. Name the layer that gives them: layer='...'."
        )
    return str(linear[-1])
