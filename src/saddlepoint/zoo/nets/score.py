"""A small score network for images."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn


class ScoreNet(nn.Module):
    """A residual network at full resolution, [N, C, H, W] -> the same shape.

    The blocks have dilations 1, 2, 4, 1, ... to enlarge the receptive field. The noise level is not
    an input. The output is minus the noise in units of its own standard deviation, as in NCSNv2
    before the division by the noise level (Song & Ermon 2020, technique 3). Activations are smooth,
    because the gradients of the network are differentiated.

    Args:
        channels: Channels of the image.
        width: Channels of the hidden layers.
        blocks: Number of residual blocks.
    """

    def __init__(self, channels: int = 3, *, width: int = 32, blocks: int = 3) -> None:
        super().__init__()
        self.begin = nn.Conv2d(channels, width, 3, padding=1)
        self.blocks = nn.ModuleList(_block(width, dilation=2 ** (k % 3)) for k in range(blocks))
        self.end = nn.Sequential(
            nn.GroupNorm(1, width), nn.ELU(), nn.Conv2d(width, channels, 3, padding=1)
        )

    def forward(self, x: Tensor) -> Tensor:
        h = self.begin(2 * x - 1)
        for block in self.blocks:
            h = h + block(h)
        return cast(Tensor, self.end(h))


def _block(width: int, dilation: int) -> nn.Sequential:
    def half() -> list[nn.Module]:
        return [
            nn.GroupNorm(1, width),
            nn.ELU(),
            nn.Conv2d(width, width, 3, padding=dilation, dilation=dilation),
        ]

    return nn.Sequential(*half(), *half())
