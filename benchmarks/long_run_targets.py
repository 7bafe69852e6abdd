"""Cheap targets and data for `benchmarks.long_runs`: linear heads and their own predictions."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from saddlepoint.data import Data
from saddlepoint.defenses import MultiExit

SHAPE = (3, 16, 16)
_CLASSES = 4
_EXITS = 7


class Heads(nn.Module):
    """Several linear classifiers that differ a little, as the exits of a network."""

    def __init__(self, count: int) -> None:
        super().__init__()
        rng = torch.Generator().manual_seed(0)
        size = SHAPE[0] * SHAPE[1] * SHAPE[2]
        common = torch.randn(_CLASSES, size, generator=rng)
        own = torch.randn(count, _CLASSES, size, generator=rng)
        self.weight = nn.Parameter((common + 0.5 * own) / size**0.5, requires_grad=False)

    def forward(self, x: Tensor) -> list[Tensor]:
        """The logits of each head, [N, C]."""
        flat = (x - 0.5).flatten(1)
        return [flat @ weight.T for weight in self.weight]


class Linear(nn.Module):
    """The first head alone."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = Heads(_EXITS)

    def forward(self, x: Tensor) -> Tensor:
        """Logits, [N, C]."""
        return self.heads(x)[0]


def linear() -> nn.Module:
    """A target with one output."""
    return Linear().eval()


def exits() -> MultiExit:
    """A target with seven exits."""
    return MultiExit(Heads(_EXITS).eval())


def images(n: int) -> Data:
    """Noise, with the predictions of the first head as labels."""
    x = torch.rand(n, *SHAPE, generator=torch.Generator().manual_seed(1))
    net = Linear()
    y = torch.cat([net(part).argmax(1) for part in torch.split(x, 250)])
    return Data("noise", x, y, tuple(map(str, range(_CLASSES))))
