"""VGG-16 with batch norm for small images, an exit after each pooling (Simonyan & Zisserman 2015)."""

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
    """`depths` convolutions, then a pooling and an exit, at 1, 2, 4, 8, 8 times `width` channels: 5 exits.

    Thirteen convolutions with batch norm and one linear layer, as is usual for CIFAR-10: 14 724 042 parameters without the four
    early heads. A picture too small to be halved any more stays as it is, so that 8x8 digits pass all five poolings.
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
