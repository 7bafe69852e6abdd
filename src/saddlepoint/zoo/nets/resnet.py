"""Residual networks for small images, with one exit or with one after each stage (He et al. 2016)."""

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
    """An exit after each of the stages, `depths` basic blocks deep and 1, 2, 4, 8 times `width` channels wide: 4 exits.

    The stem is the one for small images, a 3x3 convolution without pooling. Without the three early heads this is the 11 173 962
    parameters usual for CIFAR-10; `width=8` has about 1/64 of them and suits 8x8 digits.
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
    """One exit, after the last stage: depths (2, 2, 2, 2) are ResNet-18, (3, 4, 6, 3) ResNet-34, (3, 3, 3) at 16 ResNet-20."""
    stem = normalized_stem(conv_bn_relu(in_channels, width), mean, std)
    return nn.Sequential(
        stem, *stages(width, depths), pooled_head(width * 2 ** (len(depths) - 1), classes)
    )


def stages(width: int, depths: Sequence[int]) -> list[nn.Sequential]:
    """Stages 1, 2, 4, ... times `width` channels wide; all but the first halve the picture."""
    widths = [width * 2**k for k in range(len(depths))]
    return [
        _stage(before, out, depth, stride=1 if k == 0 else 2)
        for k, (before, out, depth) in enumerate(
            zip([width, *widths], widths, depths, strict=False)
        )
    ]


def seven_exit_resnet(width: int = 12, *, in_channels: int = 3, classes: int = 10) -> Staged:
    """Seven basic blocks with an exit after each: 127 subsets of exits on a network that two cores can train."""
    widths = [width * 2 ** (k // 2) for k in range(7)]
    blocks = [
        _block(before, out, stride=1 if before == out else 2)
        for before, out in zip([width, *widths], widths, strict=False)
    ]
    stem = normalized_stem(conv_bn_relu(in_channels, width), MEAN, STD)
    return Staged(stem, blocks, [pooled_head(channels, classes) for channels in widths])


def digits_exits() -> Staged:
    """The four-exit ResNet-18 at an eighth of its width, for 8x8 digits."""
    return resnet18(8, in_channels=1)


def digits_resnet() -> nn.Sequential:
    """Three stages of one block each, 8, 16 and 32 channels wide, with batch norm and one exit, for 8x8 digits."""
    return resnet((1, 1, 1), 8, in_channels=1)


def cifar_exits() -> Staged:
    """The seven-exit network for CIFAR-10."""
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
