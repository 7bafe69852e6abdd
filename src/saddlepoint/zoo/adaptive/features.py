"""What layers of a net give, by their names."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from saddlepoint.zoo.layers import reaching, refuse_unknown, refuse_unreached


class Looked(NamedTuple):
    """One pass through a net."""

    logits: Tensor  # [N, C]
    features: Tensor  # [N, ...] of the layer that was looked at


class _Enough(Exception):  # noqa: N818
    """All that was asked for is known: the rest of the pass would be thrown away."""


def features(net: nn.Module, layers: Sequence[str], x: Tensor) -> list[Tensor]:
    """What each of the layers gives when it is first reached; the pass ends with the last of them."""
    seen: dict[str, Tensor] = {}

    def note(name: str, given: Tensor, out: Tensor) -> Tensor:  # noqa: ARG001
        seen.setdefault(name, out)
        if len(seen) == len(layers):
            raise _Enough
        return (
            out.clone()
        )  # a layer after it may work in place, and must not change what was seen here

    try:
        with reaching(net, tuple(layers), note):
            net(x)
    except _Enough:
        pass
    refuse_unreached(layers, seen)
    return [seen[name] for name in layers]


def looked(net: nn.Module, layer: str, x: Tensor) -> Looked:
    """What the net answers, and what the layer gives."""
    seen: dict[str, Tensor] = {}

    def note(name: str, given: Tensor, out: Tensor) -> Tensor:  # noqa: ARG001
        seen[name] = out
        return out.clone()  # as above

    with reaching(net, (layer,), note):
        logits = net(x)
    refuse_unreached((layer,), seen)
    return Looked(logits, seen[layer])


def probed(net: nn.Module, layers: Sequence[str], example: Tensor) -> list[Tensor]:
    """What the layers of a copy in eval mode give to an example: for sizing what stands on them."""
    if not layers or len(set(layers)) < len(layers):
        raise ValueError(f"name the layers to look at, each once; got {list(layers)}.")
    refuse_unknown(net, layers)
    with torch.no_grad():
        return features(copy.deepcopy(net).eval(), layers, example)
