"""Wide ResNet 34-10 with four exits (Zagoruyko & Komodakis 2016)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import cast

from torch import Tensor, nn

from saddlepoint.zoo.nets.staged import MEAN, STD, Staged, convolution, normalized_stem, pooled_head


def wrn34_10(
    widen: int = 10,
    depth: int = 34,
    *,
    in_channels: int = 3,
    classes: int = 10,
    mean: Sequence[float] = MEAN,
    std: Sequence[float] = STD,
) -> Staged:
    """Return WRN-34-10 with exits after group 1, after group 2, inside group 3 and after group 3.

    The network has three groups of (depth - 4) / 6 blocks. The paper of the attack-defense game
    does not say where its exits are. Exits after the groups are natural. The remaining one is where
    most of the parameters are, after the third of the last group's five blocks. Without the three
    early heads the network has the 46 160 474 parameters usual for CIFAR-10. `widen=1, depth=16` is
    a small version.

    Args:
        widen: The groups have 16, 32 and 64 times as many channels.
        depth: Number of layers, 6 n + 4 with n >= 2.
        in_channels: Channels of the image.
        classes: Number of classes.
        mean: Mean of the pixels per channel.
        std: Standard deviation of the pixels per channel.

    Raises:
        ValueError: `depth` is not 6 n + 4 with n >= 2.
    """
    blocks, rest = divmod(depth - 4, 6)
    if rest or blocks < 2:
        raise ValueError(
            "a wide ResNet with an exit inside its last group has depth 6 n + 4 with n >= 2, "
            f"got depth={depth}."
        )
    widths = [16 * widen, 32 * widen, 64 * widen]
    groups = [
        _group(before, out, blocks, first=k == 0)
        for k, (before, out) in enumerate(pairwise([16, *widths]))
    ]
    middle = (blocks + 1) // 2
    stages = [groups[0], groups[1], groups[2][:middle], groups[2][middle:]]
    heads = [_head(channels, classes) for channels in (*widths, widths[-1])]
    return Staged(normalized_stem(convolution(in_channels, 16), mean, std), stages, heads)


def _group(channels: int, out: int, blocks: int, *, first: bool) -> nn.Sequential:
    return nn.Sequential(
        *(
            _PreActivation(
                channels if k == 0 else out, out, stride=2 if k == 0 and not first else 1
            )
            for k in range(blocks)
        )
    )


def _head(channels: int, classes: int) -> nn.Sequential:
    """Return a head; it starts with the activation, because blocks end before theirs."""
    return nn.Sequential(nn.BatchNorm2d(channels), nn.ReLU(), *pooled_head(channels, classes))


class _PreActivation(nn.Module):
    """x + body(a) with a = relu(bn(x)); where the shape changes, shortcut(a) + body(a)."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.activation = nn.Sequential(nn.BatchNorm2d(channels), nn.ReLU())
        self.body = nn.Sequential(
            convolution(channels, out, stride=stride),
            nn.BatchNorm2d(out),
            nn.ReLU(),
            convolution(out, out),
        )
        self.widened = stride != 1 or channels != out
        if self.widened:
            self.shortcut = convolution(channels, out, kernel=1, stride=stride)

    def forward(self, x: Tensor) -> Tensor:
        a = self.activation(x)
        return cast(Tensor, (self.shortcut(a) if self.widened else x) + self.body(a))
