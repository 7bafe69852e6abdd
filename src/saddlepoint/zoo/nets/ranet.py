"""Resolution-adaptive network (Yang et al. 2020).

Sub-networks run from coarse to fine, and each uses the features of the previous one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Literal, NamedTuple, cast

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

# By number of exits: the scale of each sub-network and its factor of the channels. Scale 1 is the
# coarsest image, and every further scale is twice as large.
_SUBNETWORKS = {6: ((1, 2, 3), (4, 2, 1)), 8: ((1, 2, 3, 3), (4, 2, 1, 1))}


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
    """Return a RANet with the released settings for CIFAR.

    With 6 exits there are three sub-networks, and the k-th block has 2 k layers. With 8 exits there
    are four, and every block has 4 layers. Sub-network i has 2 i blocks, and its last two have an
    exit each. `step=1, channels=4, growth=2, head_width=16` is a small version.

    Args:
        exits: 6 or 8.
        step: Replaces the 2 or the 4 above.
        channels: Channels at factor 1 before the first block.
        growth: Channels that a layer adds at factor 1.
        head_width: Channels of the convolutions in a head.
        in_channels: Channels of the image.
        classes: Number of classes.
        mean: Mean of the pixels per channel.
        std: Standard deviation of the pixels per channel.

    Raises:
        ValueError: `exits` is neither 6 nor 8.
    """
    if exits not in _SUBNETWORKS:
        raise ValueError(
            f"the released RANets for small images have 6 or 8 exits, got exits={exits}."
        )
    scales, factors = _SUBNETWORKS[exits]
    build_head = partial(strided_head, classes=classes, width=head_width)
    flows = []
    heads = list[nn.Module]()
    below = list[_Block]()
    for number, (scale, factor) in enumerate(zip(scales, factors, strict=True), start=1):
        depths = [_depth(exits, step, k) for k in range(1, 2 * number + 1)]
        flow = _flow(depths, scale, channels * factor, growth * factor, factor, below, build_head)
        flows.append(flow.blocks)
        heads += flow.heads
        below = flow.blocks
    stem = normalized_stem(_Pyramid(in_channels, channels, scales, factors), mean, std)
    return RANet(stem, flows, heads)


def _depth(exits: int, step: int | None, k: int) -> int:
    """Return the number of layers of block k of a sub-network."""
    return (step or 2) * k if exits == 6 else step or 4


class _Flow(NamedTuple):
    """A sub-network."""

    blocks: list[_Block]
    heads: list[nn.Module]  # one for each block without a counterpart in the coarser sub-network


def _flow(
    depths: Sequence[int],  # layers per block
    scale: int,
    width: int,  # input channels of the first block
    growth: int,  # channels that a layer adds
    factor: int,
    below: Sequence[_Block],  # the blocks of the next coarser sub-network
    build_head: Callable[[int], nn.Module],
) -> _Flow:
    number = len(depths) // 2
    # As many blocks halve the image as are needed to reach the coarsest size.
    halving = range(2, len(depths), 2)[number - scale :]
    reducing = [k * len(depths) // scale for k in range(1, scale)]
    flow = _Flow([], [])
    for k, depth in enumerate(depths, start=1):
        block: _Block
        if k > len(below):
            block = _Dense(width, growth, depth, factor, reduces=k in reducing)
            flow.heads.append(build_head(block.out))
        else:
            block = _Fusion(
                width,
                growth,
                depth,
                factor,
                below[k - 1],
                halves=k in halving,
                reduces=k in reducing,
            )
        flow.blocks.append(block)
        width = block.out
    return flow


class RANet(nn.Module):
    """Sub-networks from coarse to fine; the output is one [N, C] per exit, in order.

    Sub-network i fuses block k with block k of sub-network i - 1 if that exists. Its other blocks
    end in an exit.

    Args:
        stem: Computes the input of every sub-network, the coarsest first.
        flows: The blocks of each sub-network.
        heads: One classifier per exit.
    """

    def __init__(
        self, stem: nn.Module, flows: Iterable[Sequence[nn.Module]], heads: Iterable[nn.Module]
    ) -> None:
        super().__init__()
        self.stem = stem
        self.heads = nn.ModuleList(heads)
        self.flows = nn.ModuleList(nn.ModuleList(blocks) for blocks in flows)

    @property
    def exits(self) -> int:
        """The number of exits."""
        return len(self.heads)

    def forward(self, x: Tensor) -> list[Tensor]:
        exits: list[Tensor] = []
        below: list[list[Tensor]] = []
        for z, blocks in zip(self.stem(x), self.flows, strict=True):
            outputs = []
            for k, block in enumerate(cast(nn.ModuleList, blocks)):
                z, layers = block(z, below[k] if k < len(below) else [])
                outputs.append(layers)
                if k >= len(below):
                    exits.append(self.heads[len(exits)](z))
            below = outputs
        return exits


class _Pyramid(nn.Module):
    """[N, C, H, W] -> the input features of each sub-network, the coarsest first.

    Each is computed from the next finer one.
    """

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
    """Layers that each append `growth` channels.

    The next finer sub-network uses the outputs of all layers.
    """

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

    def forward(
        self,
        x: Tensor,
        low: Sequence[Tensor],  # noqa: ARG002
    ) -> tuple[Tensor, list[Tensor]]:
        outputs = [x]
        for layer in self.layers:
            outputs.append(torch.cat([outputs[-1], layer(outputs[-1])], dim=1))
        return self.last(outputs[-1]), outputs


class _Fusion(_Block):
    """x_k = [x_{k-1}, up_k(low_{k-1}), layer_k(x_{k-1})]; the output is [x_K, up(low_K)].

    All feature maps are resized to that of layer_k. `low` is the block of the same number in the
    coarser sub-network; a quarter of the new channels comes from it. A block that halves the image
    does so in its last layer.
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
        outputs = [x]
        for layer, up, coarse in zip(self.layers, self.up, low, strict=False):
            added = layer(outputs[-1])
            parts = [_resized(outputs[-1], added), _resized(up(coarse), added), added]
            outputs.append(torch.cat(parts, dim=1))
        final = torch.cat([outputs[-1], _resized(self.up[-1](low[-1]), outputs[-1])], dim=1)
        return self.last(final), outputs


def _resized(x: Tensor, like: Tensor) -> Tensor:
    return nn.functional.interpolate(x, like.shape[-2:], mode="bilinear", align_corners=True)
