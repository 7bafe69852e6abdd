"""Residual networks with one or several exits for small images (He et al. 2016)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from saddlepoint.zoo.nets.staged import (
    MEAN,
    STD,
    Staged,
    conv_bn,
    conv_bn_relu,
    normalized_stem,
    pooled_head,
)


def resnet18(
    width: int = 64,
    depths: Sequence[int] = (2, 2, 2, 2),
    *,
    in_channels: int = 3,
    classes: int = 10,
    mean: Sequence[float] = MEAN,
    std: Sequence[float] = STD,
) -> Staged:
    """Return a ResNet-18 for small images with an exit after each of its four stages.

    The stem is a 3x3 convolution without pooling. Without the three early heads the network has the
    11 173 962 parameters usual for CIFAR-10. `width=8` has about 1/64 of them and suits 8x8 digits.

    Args:
        width: Channels of the first stage; the stages have 1, 2, 4 and 8 times as many.
        depths: Number of basic blocks per stage.
        in_channels: Channels of the image.
        classes: Number of classes.
        mean: Mean of the pixels per channel.
        std: Standard deviation of the pixels per channel.
    """
    stem = normalized_stem(conv_bn_relu(in_channels, width), mean, std)
    return Staged(
        stem,
        stages(width, depths),
        [pooled_head(width * 2**k, classes) for k in range(len(depths))],
    )


def resnet(
    depths: Sequence[int],
    width: int = 64,
    *,
    in_channels: int = 3,
    classes: int = 10,
    mean: Sequence[float] = MEAN,
    std: Sequence[float] = STD,
) -> nn.Sequential:
    """Return a residual network for small images with one exit.

    Depths (2, 2, 2, 2) give ResNet-18, (3, 4, 6, 3) ResNet-34, and (3, 3, 3) with width 16
    ResNet-20.

    Args:
        depths: Number of basic blocks per stage.
        width: Channels of the first stage; each further stage has twice as many.
        in_channels: Channels of the image.
        classes: Number of classes.
        mean: Mean of the pixels per channel.
        std: Standard deviation of the pixels per channel.
    """
    stem = normalized_stem(conv_bn_relu(in_channels, width), mean, std)
    return nn.Sequential(
        stem, *stages(width, depths), pooled_head(width * 2 ** (len(depths) - 1), classes)
    )


def stages(width: int, depths: Sequence[int]) -> list[nn.Sequential]:
    """Return stages with 1, 2, 4, ... times `width` channels; all but the first halve the image.

    Args:
        width: Channels of the input and of the first stage.
        depths: Number of basic blocks per stage.
    """
    widths = [width * 2**k for k in range(len(depths))]
    return [
        _stage(before, out, depth, stride=1 if k == 0 else 2)
        for k, (before, out, depth) in enumerate(
            zip([width, *widths], widths, depths, strict=False)
        )
    ]


def seven_exit_resnet(width: int = 12, *, in_channels: int = 3, classes: int = 10) -> Staged:
    """Return a network of seven basic blocks with an exit after each.

    It has 127 subsets of exits and can be trained on two cores.

    Args:
        width: Channels of the first two blocks; every second block doubles them.
        in_channels: Channels of the image.
        classes: Number of classes.
    """
    widths = [width * 2 ** (k // 2) for k in range(7)]
    blocks = [
        _block(before, out, stride=1 if before == out else 2)
        for before, out in zip([width, *widths], widths, strict=False)
    ]
    stem = normalized_stem(conv_bn_relu(in_channels, width), MEAN, STD)
    return Staged(stem, blocks, [pooled_head(channels, classes) for channels in widths])


def digits_exits() -> Staged:
    """Return the four-exit ResNet-18 at an eighth of its width, for 8x8 digits."""
    return resnet18(8, in_channels=1)


def digits_resnet() -> nn.Sequential:
    """Return a residual network with batch norm and one exit, for 8x8 digits.

    It has three stages of one block each, 8, 16 and 32 channels wide.
    """
    return resnet((1, 1, 1), 8, in_channels=1)


def cifar_exits() -> Staged:
    """Return the seven-exit network for CIFAR-10."""
    return seven_exit_resnet()


def _stage(channels: int, out: int, depth: int, stride: int) -> nn.Sequential:
    return nn.Sequential(
        *(_block(channels if k == 0 else out, out, stride if k == 0 else 1) for k in range(depth))
    )


def _block(channels: int, out: int, stride: int) -> _Residual:
    body = nn.Sequential(*conv_bn_relu(channels, out, stride=stride), *conv_bn(out, out))
    same = stride == 1 and channels == out
    return _Residual(
        body, nn.Identity() if same else conv_bn(channels, out, kernel=1, stride=stride)
    )


class _Residual(nn.Module):
    """relu(shortcut(x) + body(x))."""

    def __init__(self, body: nn.Module, shortcut: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.shortcut = shortcut

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(cast(Tensor, self.shortcut(x) + self.body(x)))
