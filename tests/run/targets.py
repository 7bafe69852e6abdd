"""Targets that worker processes can load by name."""

from __future__ import annotations

import torch
from torch import nn


class Linear(nn.Module):
    """A fixed linear classifier of 8x8 images."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 10)
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            self.layer.weight.copy_(torch.randn(10, 64, generator=generator))
            self.layer.bias.zero_()

    def forward(self, x):
        return self.layer(x.flatten(1))


def linear():
    return Linear().eval()


def broken():
    raise RuntimeError("no such checkpoint")


def hungry():
    """A net that can hold no more than sixteen images at a time."""

    class Hungry(Linear):
        def forward(self, x):
            if len(x) > 16:
                raise MemoryError
            return super().forward(x)

    return Hungry().eval()


def flipped():
    """Another model of the same shape."""
    net = Linear().eval()
    with torch.no_grad():
        net.layer.weight.mul_(-1)
    return net
