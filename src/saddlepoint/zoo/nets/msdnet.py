"""Multi-scale dense network (Huang et al. 2018).

Every layer has features at several resolutions, so that every exit can use coarse ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
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
    """Return an MSDNet.

    The defaults are the released CIFAR settings for budgeted batch classification. They have exits
    after 1, 2, 3, 4 and 5 further layers and features at three scales. The settings for anytime
    prediction are `exits=7, base=4, step=2, growing=False`. `channels=4, growth=2, head_width=16`
    is a small version. After each third of the layers the finest scale is dropped, and 1x1
    convolutions halve the channels of the others.

    Args:
        exits: Number of exits.
        base: Layers before exit 1.
        step: Exit i + 1 comes i step + 1 layers after exit i if `growing`, else `step` layers.
        growing: Whether the distance between exits grows.
        channels: Channels at scale 0 before the first layer.
        growth: Channels that a layer adds at scale 0.
        factors: Scale s halves the image s times and has factors[s] times the channels and growth.
        head_width: Channels of the convolutions in a head.
        in_channels: Channels of the image.
        classes: Number of classes.
        mean: Mean of the pixels per channel.
        std: Standard deviation of the pixels per channel.
    """
    distances = (step * k + 1 if growing else step for k in range(1, exits))
    last_layers = list(accumulate([base, *distances]))
    build_head = partial(strided_head, classes=classes, width=head_width)
    parts = list(_stages_and_heads(last_layers, channels, growth, factors, build_head))
    stem = normalized_stem(_Scales(in_channels, channels, factors), mean, std)
    return Staged(stem, [stage for stage, _ in parts], [head for _, head in parts])


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
    """Return the MSDNet of Han et al. 2022.

    It becomes an L2W-DEN by its training method, `LearnedWeights`. The arguments are those of
    `msdnet`.
    """
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


def _stages_and_heads(
    last_layers: Sequence[int],  # number of the last layer of each stage, from 1
    channels: int,
    growth: int,
    factors: Sequence[int],
    build_head: Callable[[int], nn.Sequential],
) -> Iterator[tuple[nn.Module, nn.Module]]:
    third = math.ceil(last_layers[-1] / len(factors))
    layers = list[nn.Module]()
    scales = range(len(factors))
    width = channels  # scale s has factors[s] times as many channels
    for number in range(last_layers[-1]):
        kept = range(number // third, len(factors))
        layers.append(_Layer(width, growth, factors, scales, kept))
        width += growth
        if kept != scales:
            layers.append(_Halved(width, factors, kept))
            width = width // 2
            scales = kept
        if number + 1 in last_layers:
            stage = nn.Sequential(*layers)
            yield stage, nn.Sequential(_Coarsest(), *build_head(width * factors[-1]))
            layers = []


class _Scales(nn.Module):
    """[N, C, H, W] -> one tensor per scale, the finest first.

    Each is computed from the previous one.
    """

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
    """z_s <- [z_s, down(z_{s-1}), same(z_s)].

    Half of the new features of a scale come from the scale itself and half from the next finer one.
    At the finest scale all come from the scale itself. `scales` are the input scales and `kept` the
    output scales; both end with the coarsest.
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
        from_finer = [self.down[str(k)](z[k - 1])] if k > 0 else []
        return torch.cat([z[k], *from_finer, same(z[k])], dim=1)


class _Halved(nn.Module):
    """1x1 convolutions that halve the channels at every scale."""

    def __init__(self, width: int, factors: Sequence[int], scales: range) -> None:
        super().__init__()
        self.each = nn.ModuleList(
            conv_bn_relu(width * factors[s], width // 2 * factors[s], kernel=1) for s in scales
        )

    def forward(self, z: list[Tensor]) -> list[Tensor]:
        return [halve(features) for halve, features in zip(self.each, z, strict=True)]


class _Coarsest(nn.Module):
    """Select the coarsest scale."""

    def forward(self, z: list[Tensor]) -> Tensor:
        return z[-1]
