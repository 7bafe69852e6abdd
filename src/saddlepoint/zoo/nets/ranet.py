"""Resolution-adaptive network: sub-networks from coarse to fine, each helped by the features of the one before.

Yang et al. 2020.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, cast

import torch
from torch import Tensor, nn

from saddlepoint.zoo.nets.staged import (
    MEAN,
    STD,
    bottlenecked,
    conv_bn_relu,
    normalized_stem,
    strided_head,
)


def ranet(
    exits: Literal[6, 8] = 6,
    *,
    step: int | None = None,
    channels: int = 16,
    growth: int = 6,
    head_width: int = 128,
    in_channels: int = 3,
    classes: int = 10,
    mean: Sequence[float] = MEAN,
    std: Sequence[float] = STD,
) -> RANet:
    """The released CIFAR recipes: three sub-networks and 6 exits, the k-th block 2 k layers deep; or four and 8, each 4 deep.

    Sub-network i has 2 i blocks, the last two with an exit each. `step` replaces the 2 or the 4; `step=1, channels=4, growth=2,
    head_width=16` is a small version.
    """
    if exits not in (6, 8):
        raise ValueError(
            f"the released RANets for small images have 6 or 8 exits, got exits={exits}."
        )
    # How fine the sub-networks start: 1 is the coarsest picture, every further one is twice as large.
    scales, factors = ((1, 2, 3), (4, 2, 1)) if exits == 6 else ((1, 2, 3, 3), (4, 2, 1, 1))
    flows = []
    heads = []
    below = list[_Block]()
    for number, (scale, factor) in enumerate(zip(scales, factors, strict=True), start=1):
        count = 2 * number
        width = channels * factor
        blocks = list[_Block]()
        halving = range(2, count, 2)[
            number - scale :
        ]  # as often as it takes to end at the coarsest size
        reducing = [k * count // scale for k in range(1, scale)]
        for k in range(1, count + 1):
            depth = (step or 2) * k if exits == 6 else step or 4
            if k > len(below):
                block: _Block = _Dense(width, growth * factor, depth, factor, reduces=k in reducing)
                heads.append(strided_head(block.out, classes, head_width))
            else:
                low = below[k - 1]
                block = _Fusion(
                    width,
                    growth * factor,
                    depth,
                    factor,
                    low,
                    halves=k in halving,
                    reduces=k in reducing,
                )
            blocks.append(block)
            width = block.out
        flows.append(blocks)
        below = blocks
    return RANet(
        normalized_stem(_Pyramid(in_channels, channels, scales, factors), mean, std), flows, heads
    )


class RANet(nn.Module):
    """Sub-network i fuses block k with block k of sub-network i - 1 where that has one, and ends its other blocks in an exit."""

    def __init__(
        self, stem: nn.Module, flows: Iterable[Sequence[nn.Module]], heads: Iterable[nn.Module]
    ) -> None:
        super().__init__()
        self.stem = stem
        self.heads = nn.ModuleList(heads)
        self.flows = nn.ModuleList(nn.ModuleList(blocks) for blocks in flows)

    @property
    def exits(self) -> int:
        return len(self.heads)

    def forward(self, x: Tensor) -> list[Tensor]:
        exits: list[Tensor] = []
        below: list[list[Tensor]] = []
        for z, blocks in zip(self.stem(x), self.flows, strict=True):
            shown = []
            for k, block in enumerate(cast(nn.ModuleList, blocks)):
                z, layers = block(z, below[k] if k < len(below) else [])
                shown.append(layers)
                if k >= len(below):
                    exits.append(self.heads[len(exits)](z))
            below = shown
        return exits


class _Pyramid(nn.Module):
    """[N, C, H, W] -> the features that each sub-network starts from, the coarsest first, each made of the next finer one."""

    def __init__(
        self, in_channels: int, channels: int, scales: Sequence[int], factors: Sequence[int]
    ) -> None:
        super().__init__()
        self.down = nn.ModuleList()
        width = in_channels
        size = scales[-1]
        for scale, factor in zip(reversed(scales), reversed(factors), strict=True):
            self.down.append(
                conv_bn_relu(width, channels * factor, stride=1 if scale == size else 2)
            )
            width = channels * factor
            size = scale

    def forward(self, x: Tensor) -> list[Tensor]:
        features = []
        for down in self.down:
            x = down(x)
            features.append(x)
        return features[::-1]


class _Block(nn.Module):
    """Layers that each append `growth` channels; all of them are shown to the next finer sub-network."""

    def __init__(self, width: int, growth: int, depth: int, factor: int) -> None:
        super().__init__()
        self.widths = [width + k * growth for k in range(depth + 1)]
        self.factor = factor
        self.out = self.widths[-1]
        self.last: nn.Module = nn.Identity()

    def _reduce(self, out: int, *, reduces: bool) -> None:
        self.out = out // 2 if reduces else out
        if reduces:
            self.last = conv_bn_relu(out, self.out, kernel=1)


class _Dense(_Block):
    """x_k = [x_{k-1}, layer_k(x_{k-1})]."""

    def __init__(self, width: int, growth: int, depth: int, factor: int, *, reduces: bool) -> None:
        super().__init__(width, growth, depth, factor)
        self.layers = nn.ModuleList(
            bottlenecked(channels, growth, factor) for channels in self.widths[:-1]
        )
        self._reduce(self.out, reduces=reduces)

    def forward(self, x: Tensor, low: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:  # noqa: ARG002
        shown = [x]
        for layer in self.layers:
            shown.append(torch.cat([shown[-1], layer(shown[-1])], dim=1))
        return self.last(shown[-1]), shown


class _Fusion(_Block):
    """x_k = [x_{k-1}, up_k(low_{k-1}), layer_k(x_{k-1})], pictures brought to the size of the last; at the end, [x_K, up(low_K)].

    `low` is the block of the same number in the coarser sub-network; a quarter of what is added comes from it. A block that halves
    the picture does so in its last layer.
    """

    def __init__(
        self,
        width: int,
        growth: int,
        depth: int,
        factor: int,
        low: _Block,
        *,
        halves: bool,
        reduces: bool,
    ) -> None:
        super().__init__(width, growth, depth, factor)
        share = max(growth // 4, 1)
        strides = [1] * (depth - 1) + [2 if halves else 1]
        self.layers = nn.ModuleList(
            bottlenecked(channels, growth - share, factor, stride)
            for channels, stride in zip(self.widths, strides, strict=False)
        )
        self.up = nn.ModuleList(
            bottlenecked(channels, share, low.factor) for channels in low.widths[:-1]
        )
        self.up.append(conv_bn_relu(low.widths[-1], self.out // 4, kernel=1))
        self._reduce(self.out + self.out // 4, reduces=reduces)

    def forward(self, x: Tensor, low: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        shown = [x]
        for layer, up, coarse in zip(self.layers, self.up, low, strict=False):
            added = layer(shown[-1])
            shown.append(
                torch.cat([_resized(shown[-1], added), _resized(up(coarse), added), added], dim=1)
            )
        final = torch.cat([shown[-1], _resized(self.up[-1](low[-1]), shown[-1])], dim=1)
        return self.last(final), shown


def _resized(x: Tensor, like: Tensor) -> Tensor:
    return nn.functional.interpolate(x, like.shape[-2:], mode="bilinear", align_corners=True)
