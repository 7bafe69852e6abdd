"""The multiscale deep equilibrium network of Yang, Pang & Liu 2022, and small versions of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import weight_norm

_GROUPS = 8  # of every group norm, except the last one of a cell, which has half as many
_EXPANSION = 5  # inner channels of a residual block, in units of its channels
_HEAD_EXPANSION = 4  # outer channels of a bottleneck in the head, in units of its planes


class MDEQNet(nn.Module):
    """An equilibrium network with states at several resolutions (Bai, Koltun & Kolter 2020).

    f(z; x) = fuse(block_1(z_1, inject(x)), block_2(z_2, 0), ...). Each resolution is half the
    previous one and has one residual block. After the blocks every resolution receives the sum of
    all. The image is injected at the highest resolution only. `mdeq_large` and `mdeq_xl` are the
    networks that Yang, Pang & Liu 2022 released; they do not normalize pixels.

    u contains the injected features, followed by one factor per channel. The factor is 1. In train
    mode it is 0 with probability `dropout` and 1 / (1 - dropout) otherwise, and is the same for all
    steps of a forward pass (variational dropout).

    Args:
        image: Channels, height and width of the image.
        channels: Channels of the state per resolution, the highest first; multiples of 8.
        planes: Inner channels of the bottlenecks in the head; outside they are four times as wide.
        width: Number of features before the linear layer.
        classes: Number of classes.
        dropout: Probability that a channel is dropped in train mode.

    Raises:
        ValueError: The numbers of channels or the size of the image do not fit.
    """

    def __init__(
        self,
        *,
        image: tuple[int, int, int],
        channels: Sequence[int],
        planes: Sequence[int],
        width: int,
        classes: int = 10,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.shapes = _shapes(image, channels, planes)
        self.sizes = [math.prod(shape) for shape in self.shapes]
        self.channels = list(channels)
        self.dropout = dropout
        first = channels[0]
        self.stem = nn.Sequential(
            *_rectified(_conv(image[0], first, 3)), *_rectified(_conv(first, first, 3))
        )
        # With two resolutions the stem is the injection, as in the released code.
        self.injection = nn.Sequential(
            *_rectified(_conv(first, first, 1)) if len(channels) > 2 else ()
        )
        self.step = _Step(channels)
        self.classifier = _Classifier(channels, planes, width, classes)
        self.apply(_initialize)

    def inject(self, x: Tensor) -> Tensor:
        """Return the injected features and the dropout factors, [N, ...] -> [N, K]."""
        features = self.injection(self.stem(x)).flatten(1)
        factors = nn.functional.dropout(
            features.new_ones(len(x), sum(self.channels)), self.dropout, self.training
        )
        return torch.cat([features, factors], 1)

    def start(self, u: Tensor) -> Tensor:
        """Return the initial state, zeros [N, D]."""
        return u.new_zeros(len(u), sum(self.sizes))

    def cell(self, z: Tensor, u: Tensor) -> Tensor:
        """Apply the cell once, [N, D] and [N, K] -> [N, D]."""
        injected, factors = torch.split(u, [self.sizes[0], sum(self.channels)], 1)
        factors_of = [
            factor[:, :, None, None] for factor in torch.split(factors, self.channels, 1)
        ]  # [N, C_i, 1, 1] each
        states = self.step(self._split(z), injected.view(-1, *self.shapes[0]), factors_of)
        return torch.cat([state.flatten(1) for state in states], 1)

    def head(self, z: Tensor) -> Tensor:
        """Return the logits of a state, [N, D] -> [N, C]."""
        return cast(Tensor, self.classifier(self._split(z)))

    def _split(self, z: Tensor) -> list[Tensor]:  # [N, D] -> [N, C_i, H_i, W_i] each
        return [
            part.view(-1, *shape)
            for part, shape in zip(torch.split(z, self.sizes, 1), self.shapes, strict=True)
        ]


def mdeq_large() -> MDEQNet:
    """Return a network for 32x32 color images with 11 097 438 parameters and D = 61 440."""
    return MDEQNet(
        image=(3, 32, 32),
        channels=(32, 64, 128, 256),
        planes=(14, 28, 56, 112),
        width=1680,
        dropout=0.22,
    )


def mdeq_xl() -> MDEQNet:
    """Return a network for 32x32 color images with 48 792 098 parameters and D = 138 240."""
    return MDEQNet(
        image=(3, 32, 32),
        channels=(72, 144, 288, 576),
        planes=(20, 40, 80, 160),
        width=1800,
        dropout=0.22,
    )


def mdeq_digits() -> MDEQNet:
    """Return a small network for 8x8 digits with two resolutions."""
    return MDEQNet(image=(1, 8, 8), channels=(16, 32), planes=(4, 8), width=64)


def mdeq_mnist() -> MDEQNet:
    """Return a small network for 28x28 gray images with three resolutions."""
    return MDEQNet(image=(1, 28, 28), channels=(8, 16, 32), planes=(4, 8, 16), width=128)


def mdeq_cifar() -> MDEQNet:
    """Return a small network for 32x32 color images with three resolutions."""
    return MDEQNet(image=(3, 32, 32), channels=(16, 32, 64), planes=(8, 16, 32), width=256)


class _Step(nn.Module):
    """The function f: one [N, C_i, H_i, W_i] per resolution -> the same shapes."""

    def __init__(self, channels: Sequence[int]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([_Block(c) for c in channels])
        pairs = [(j, i) for i in range(len(channels)) for j in range(len(channels)) if i != j]
        self.paths = nn.ModuleDict({f"{j}-{i}": _path(channels, j, i) for j, i in pairs})
        self.after = nn.ModuleList(
            [
                nn.Sequential(
                    nn.ReLU(),
                    weight_norm(_conv(c, c, 1)),
                    nn.GroupNorm(_GROUPS // 2, c, affine=False),
                )
                for c in channels
            ]
        )

    def forward(
        self, states: list[Tensor], injected: Tensor, factors: list[Tensor]
    ) -> list[Tensor]:
        injections = [injected] + [torch.zeros_like(state) for state in states[1:]]
        states = [
            block(*inputs)
            for block, *inputs in zip(self.blocks, states, injections, factors, strict=True)
        ]
        return [after(self._fused(states, i)) for i, after in enumerate(self.after)]

    def _fused(self, states: list[Tensor], i: int) -> Tensor:
        return torch.stack(
            [state if j == i else self.paths[f"{j}-{i}"](state) for j, state in enumerate(states)]
        ).sum(0)


class _Block(nn.Module):
    """norm(relu(z + norm(factor conv(relu(norm(conv(z)))) + injected))).

    Both convolutions are weight-normalized.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        inside = _EXPANSION * channels
        self.inner = nn.Sequential(
            weight_norm(_conv(channels, inside, 3)),
            nn.GroupNorm(_GROUPS, inside),
            nn.ReLU(),
            weight_norm(_conv(inside, channels, 3)),
        )
        self.before = nn.GroupNorm(_GROUPS, channels)
        self.after = nn.GroupNorm(_GROUPS, channels)

    def forward(self, z: Tensor, injected: Tensor, factor: Tensor) -> Tensor:
        change = self.before(factor * self.inner(z) + injected)
        return cast(Tensor, self.after((z + change).relu()))


def _path(channels: Sequence[int], source: int, target: int) -> nn.Module:
    """Return the path from one resolution to another.

    Upsampling is by nearest neighbors. Downsampling is by convolutions with stride 2, and only the
    last one changes the number of channels.
    """
    c = channels[source]
    out = channels[target]
    if source > target:
        up = nn.Upsample(scale_factor=2 ** (source - target), mode="nearest")
        return nn.Sequential(_conv(c, out, 1), nn.GroupNorm(_GROUPS, out), up)
    layers: list[nn.Module] = []
    for _ in range(target - source - 1):
        layers += [_conv(c, c, 3, stride=2), nn.GroupNorm(_GROUPS, c), nn.ReLU()]
    return nn.Sequential(*layers, _conv(c, out, 3, stride=2), nn.GroupNorm(_GROUPS, out))


class _Classifier(nn.Module):
    """y_{i+1} = bottleneck_{i+1}(z_{i+1}) + down(y_i) from high to low resolution.

    The last y is pooled and classified by a linear layer.
    """

    def __init__(
        self, channels: Sequence[int], planes: Sequence[int], width: int, classes: int
    ) -> None:
        super().__init__()
        outside = [_HEAD_EXPANSION * p for p in planes]
        self.bottlenecks = nn.ModuleList(
            [_Bottleneck(c, p) for c, p in zip(channels, planes, strict=True)]
        )
        self.down = nn.ModuleList(
            [
                nn.Sequential(*_rectified(_conv(a, b, 3, stride=2, bias=True)))
                for a, b in pairwise(outside)
            ]
        )
        self.last = nn.Sequential(*_rectified(_conv(outside[-1], width, 1, bias=True)))
        self.linear = nn.Linear(width, classes)

    def forward(self, states: list[Tensor]) -> Tensor:
        y = self.bottlenecks[0](states[0])
        for bottleneck, down, state in zip(
            self.bottlenecks[1:], self.down, states[1:], strict=True
        ):
            y = bottleneck(state) + down(y)
        return cast(Tensor, self.linear(self.last(y).mean((2, 3))))


class _Bottleneck(nn.Module):
    """relu(project(z) + norm(conv(relu(norm(conv(relu(norm(conv(z))))))))).

    The norms of the residual branch have no parameters.
    """

    def __init__(self, channels: int, planes: int) -> None:
        super().__init__()
        outside = _HEAD_EXPANSION * planes
        self.long = nn.Sequential(
            _conv(channels, planes, 1),
            nn.BatchNorm2d(planes, affine=False),
            nn.ReLU(),
            _conv(planes, planes, 3),
            nn.BatchNorm2d(planes, affine=False),
            nn.ReLU(),
            _conv(planes, outside, 1),
            nn.BatchNorm2d(outside, affine=False),
        )
        self.project = nn.Sequential(_conv(channels, outside, 1), nn.BatchNorm2d(outside))

    def forward(self, z: Tensor) -> Tensor:
        return cast(Tensor, (self.project(z) + self.long(z)).relu())


def _conv(
    inside: int, outside: int, kernel: int, *, stride: int = 1, bias: bool = False
) -> nn.Conv2d:
    return nn.Conv2d(inside, outside, kernel, stride=stride, padding=kernel // 2, bias=bias)


def _rectified(conv: nn.Conv2d) -> tuple[nn.Module, ...]:
    return conv, nn.BatchNorm2d(conv.out_channels), nn.ReLU()


def _initialize(module: nn.Module) -> None:
    """Initialize convolutions with 0.01 times normal noise, except weight-normalized ones.

    Those keep PyTorch's initialization. The released code sets their derived weight, which has no
    effect: it is recomputed from direction and length before it is used.
    """
    if isinstance(module, nn.Conv2d) and not parametrize.is_parametrized(module):
        nn.init.normal_(module.weight, 0, 0.01)
        if module.bias is not None:
            nn.init.normal_(module.bias, 0, 0.01)


def _shapes(
    image: tuple[int, int, int], channels: Sequence[int], planes: Sequence[int]
) -> list[tuple[int, int, int]]:
    _, height, width = image
    if len(channels) < 2 or len(planes) != len(channels) or any(c % _GROUPS for c in channels):
        raise ValueError(
            "MDEQNet needs channels and planes for the same two or more resolutions, channels in "
            f"multiples of {_GROUPS}, got channels={tuple(channels)} and planes={tuple(planes)}. "
            "For one resolution use ConvDEQNet."
        )
    multiple = 2 ** (len(channels) - 1)
    if height % multiple or width % multiple:
        raise ValueError(
            f"MDEQNet halves its image {len(channels) - 1} times, got {height}x{width}. "
            f"Pad it to multiples of {multiple}, or use fewer resolutions."
        )
    return [(c, height // 2**i, width // 2**i) for i, c in enumerate(channels)]
