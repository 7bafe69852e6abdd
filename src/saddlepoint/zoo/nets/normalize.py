"""Pixel normalization as the first layer of a network, so that attacks work on raw pixels."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Normalize(nn.Module):
    """(x - mean) / std per channel.

    Args:
        mean: One number per channel, or one for all.
        std: Likewise.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        # Constants of the architecture: they are not stored with the weights.
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.std

    def channel_scales(self) -> Tensor:
        """Return the factor of each channel, [channels], for certified bounds."""
        return 1 / self.std.flatten()
