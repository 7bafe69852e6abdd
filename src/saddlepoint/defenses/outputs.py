"""Wrappers that say how the outputs of a net are to be read: which of them, and as what."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn


class SelectLogits(nn.Module):
    """A net that returns several values, reduced to its logits.

    Args:
        net: the net.
        key: the logits inside its output: an attribute, a key or a position.
    """

    def __init__(self, net: nn.Module, key: str | int) -> None:
        super().__init__()
        self.net = net
        self.key = key
        self.training = net.training

    def forward(self, x: Tensor) -> Any:
        out = self.net(x)
        return out if isinstance(out, Tensor) else output_entries(out)[self.key]


class BinaryLogits(nn.Module):
    """A net with one logit z per image, as a net with two classes: class 1 if z > 0.

    The logits of the two classes are -z/2 and z/2, so their cross-entropy is the binary one.

    Args:
        net: a module from [N, ...] to [N] or [N, 1].
    """

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        self.training = net.training

    def forward(self, x: Tensor) -> Tensor:
        return two_classes(self.net(x))


class BinaryProbabilities(nn.Module):
    """A net with the probability p of class 1, as a net with two classes: class 1 if p > 0.5.

    The logits of the two classes are log(1 - p) and log p.

    Args:
        net: a module from [N, ...] to [N] or [N, 1], with values in [0, 1].
    """

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        self.training = net.training

    def forward(self, x: Tensor) -> Tensor:
        p = self.net(x).flatten()
        low = torch.finfo(p.dtype).tiny
        return torch.stack([(1 - p).clamp(min=low).log(), p.clamp(min=low).log()], 1)


def two_classes(z: Tensor) -> Tensor:
    """Binary logits [N] or [N, 1] as logits of two classes, [N, 2]: -z/2 and z/2."""
    half = z.flatten() / 2
    return torch.stack([-half, half], 1)


def output_entries(out: Any) -> dict[str | int, object]:
    """The values inside an output, by key, attribute or position."""
    if isinstance(out, Mapping):
        return dict(out)
    if isinstance(out, tuple):
        names = getattr(out, "_fields", range(len(out)))
        return dict(zip(names, out, strict=True))
    return dict(getattr(out, "__dict__", {}))
