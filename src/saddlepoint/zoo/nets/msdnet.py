"""Multi-scale dense network: every layer holds features at several resolutions, so that every exit sees coarse ones.

Huang et al. 2018.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor, nn

from saddlepoint.zoo.nets.staged import (
    MEAN,
    STD,
    Staged,
    bottlenecked,
    conv_bn_relu,
    normalized_stem,
    strided_head,
)


def msdnet(
    exits: int = 5,
    *,
    base: int = 1,
    step: int = 1,
    growing: bool = True,
    channels: int = 16,
    growth: int = 6,
    factors: Sequence[int] = (1, 2, 4),
    head_width: int = 128,
    in_channels: int = 3,
    classes: int = 10,
    mean: Sequence[float] = MEAN,
    std: Sequence[float] = STD,
) -> Staged:
    """The released CIFAR recipe for batch computation: exits after 1, 2, 3, 4, 5 further layers, features at three scales.

    Exit 1 follows `base` layers, exit i + 1 a further i step + 1 if `growing`, else `step`; the recipe for anytime prediction is
    `exits=7, base=4, step=2, growing=False`. Scale s halves the picture s times and has factors[s] times the channels and the
    growth. After each third of the layers the finest scale is dropped, and 1x1 convolutions halve the channels of the others.
    `channels=4, growth=2, head_width=16` is a small version.
    """
    last_layers = list(
        accumulate([base, *(step * k + 1 if growing else step for k in range(1, exits))])
    )
    third = math.ceil(last_layers[-1] / len(factors))
    stages = []
    heads = []
    layers = list[nn.Module]()
    scales = range(len(factors))
    width = channels  # of scale s: times factors[s]
    for number in range(last_layers[-1]):
        kept = range(number // third, len(factors))
        layers.append(_Layer(width, growth, factors, scales, kept))
        width += growth
        if kept != scales:
            layers.append(_Halved(width, factors, kept))
            width = width // 2
            scales = kept
        if number + 1 in last_layers:
            stages.append(nn.Sequential(*layers))
            heads.append(
                nn.Sequential(_Coarsest(), *strided_head(width * factors[-1], classes, head_width))
            )
            layers = []
    return Staged(
        normalized_stem(_Scales(in_channels, channels, factors), mean, std), stages, heads
    )


def l2w_den(
    exits: int = 5,
    *,
    channels: int = 16,
    growth: int = 6,
    head_width: int = 128,
    in_channels: int = 3,
    classes: int = 10,
    mean: Sequence[float] = MEAN,
    std: Sequence[float] = STD,
) -> Staged:
    """The MSDNet that Han et al. 2022 train: what makes it an L2W-DEN is the training method, `LearnedWeights`."""
    return msdnet(
        exits,
        channels=channels,
        growth=growth,
        head_width=head_width,
        in_channels=in_channels,
        classes=classes,
        mean=mean,
        std=std,
    )


class _Scales(nn.Module):
    """[N, C, H, W] -> one tensor per scale, the finest first, each made of the one before."""

    def __init__(self, in_channels: int, channels: int, factors: Sequence[int]) -> None:
        super().__init__()
        widths = [in_channels, *(channels * factor for factor in factors)]
        self.down = nn.ModuleList(
            conv_bn_relu(widths[s], widths[s + 1], stride=1 if s == 0 else 2)
            for s in range(len(factors))
        )

    def forward(self, x: Tensor) -> list[Tensor]:
        scales = []
        for down in self.down:
            x = down(x)
            scales.append(x)
        return scales


class _Layer(nn.Module):
    """z_s <- [z_s, down(z_{s-1}), same(z_s)]: each scale grows by features of its own and, half and half, of the finer one.

    `scales` are those that come in, `kept` those that go out; both end with the coarsest. The finest one's growth is all its own.
    """

    def __init__(
        self, width: int, growth: int, factors: Sequence[int], scales: range, kept: range
    ) -> None:
        super().__init__()
        self.first = kept.start - scales.start
        self.same = nn.ModuleList()
        self.down = nn.ModuleDict()
        for k, s in enumerate(kept, start=self.first):
            share = growth * factors[s] // (1 if s == scales.start else 2)
            self.same.append(bottlenecked(width * factors[s], share, factors[s]))
            if s > scales.start:
                self.down[str(k)] = bottlenecked(
                    width * factors[s - 1], share, factors[s - 1], stride=2
                )

    def forward(self, z: list[Tensor]) -> list[Tensor]:
        return [self._grown(z, k, same) for k, same in enumerate(self.same, start=self.first)]

    def _grown(self, z: list[Tensor], k: int, same: nn.Module) -> Tensor:
        finer = [self.down[str(k)](z[k - 1])] if k > 0 else []
        return torch.cat([z[k], *finer, same(z[k])], dim=1)


class _Halved(nn.Module):
    """Half the channels at every scale."""

    def __init__(self, width: int, factors: Sequence[int], scales: range) -> None:
        super().__init__()
        self.each = nn.ModuleList(
            conv_bn_relu(width * factors[s], width // 2 * factors[s], kernel=1) for s in scales
        )

    def forward(self, z: list[Tensor]) -> list[Tensor]:
        return [halve(features) for halve, features in zip(self.each, z, strict=True)]


class _Coarsest(nn.Module):
    def forward(self, z: list[Tensor]) -> Tensor:
        return z[-1]
