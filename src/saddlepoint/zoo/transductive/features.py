"""What a network sees before its last layer decides."""

from __future__ import annotations

import threading

import torch
from torch import Tensor, nn


def penultimate(net: nn.Module) -> nn.Linear:
    """The last linear layer of a classifier, whose input is its penultimate layer."""
    linear = [module for module in net.modules() if isinstance(module, nn.Linear)]
    if not linear:
        raise ValueError(
            f"{type(net).__name__} has no linear layer, so no penultimate one. Give a network that ends in nn.Linear, "
            "or the layer whose input are its features."
        )
    return linear[-1]


def features(net: nn.Module, x: Tensor, layer: nn.Module, *, batch_size: int = 256) -> Tensor:
    """[N, F] what enters `layer` when the network is asked about x, without gradients, in the mode the network is in."""
    seen = list[Tensor]()
    here = threading.get_ident()

    def note(module: nn.Module, entering: tuple[Tensor, ...]) -> None:  # noqa: ARG001
        if threading.get_ident() == here:
            seen.append(entering[0].flatten(1))

    handle = layer.register_forward_pre_hook(note)
    try:
        with torch.no_grad():
            parts = torch.split(x, batch_size)
            for part in parts:
                net(part)
    finally:
        handle.remove()
    if len(seen) != len(parts):
        raise ValueError(
            f"the layer was reached {len(seen)} times in {len(parts)} passes. Choose one that is reached once."
        )
    return torch.cat(seen)
