"""VGG-16 with batch norm and several exits for small images (Simonyan & Zisserman 2015)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from saddlepoint.zoo.nets.normalize import Normalize
from saddlepoint.zoo.nets.staged import MEAN, STD, Staged, conv_bn_relu, pooled_head


def vgg16(
    width: int = 64,
    depths: Sequence[int] = (2, 2, 3, 3, 3),
    *,
    in_channels: int = 3,
    classes: int = 10,
    mean: Sequence[float] = MEAN,
    std: Sequence[float] = STD,
) -> Staged:
    """Return a VGG-16 with an exit after each of its five poolings.

    It has thirteen convolutions with batch norm and one linear layer, as is usual for CIFAR-10:
    14 724 042 parameters without the four early heads. An image that cannot be halved any more
    keeps its size, so 8x8 digits pass all five poolings.

    Args:
        width: Channels of the first stage; the stages have 1, 2, 4, 8 and 8 times as many.
        depths: Number of convolutions per stage.
        in_channels: Channels of the image.
        classes: Number of classes.
        mean: Mean of the pixels per channel.
        std: Standard deviation of the pixels per channel.
    """
    widths = [width * min(2**k, 8) for k in range(len(depths))]
    stages = [
        _stage(before, out, depth)
        for before, out, depth in zip([in_channels, *widths], widths, depths, strict=False)
    ]
    return Staged(
        Normalize(mean, std), stages, [pooled_head(channels, classes) for channels in widths]
    )


def _stage(channels: int, out: int, depth: int) -> nn.Sequential:
    convolutions = (conv_bn_relu(channels if k == 0 else out, out) for k in range(depth))
    return nn.Sequential(*convolutions, nn.MaxPool2d(2, ceil_mode=True))
