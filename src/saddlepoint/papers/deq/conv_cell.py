"""A convolutional equilibrium network for CIFAR-10 that is cheap enough to train on one core.

Its cell is the residual block of the paper's multi-scale network at one resolution.
"""

from __future__ import annotations

import math
from typing import cast

from torch import Tensor, nn

_GROUPS = 8  # of every group norm, as in the paper's network


class ConvCellNet(nn.Module):
    """z = norm(relu(z + norm(conv(relu(norm(conv(z)))) + u(x)))) at one resolution.

    The block of `saddlepoint.zoo.nets.mdeq` without the expansion of its inner channels and without
    the fusion of several resolutions. As there, nothing bounds the Lipschitz constant of the cell,
    so training decides whether it has an equilibrium. Pixels are not normalized.

    Args:
        image: Channels, height and width of the image.
        widths: Channels after each convolution of the stem; all but the first halve the image. The
            last is the number of channels of the state, a multiple of 8.
        classes: Number of classes.

    Raises:
        ValueError: The state has no multiple of 8 channels.
    """

    def __init__(
        self,
        *,
        image: tuple[int, int, int] = (3, 32, 32),
        widths: tuple[int, ...] = (32, 64, 64),
        classes: int = 10,
    ) -> None:
        super().__init__()
        channels = widths[-1]
        if channels % _GROUPS:
            raise ValueError(f"the state needs a multiple of {_GROUPS} channels, got {channels}.")
        depth, *sides = image
        layers: list[nn.Module] = []
        for k, width in enumerate(widths):
            stride = 2 if k else 1
            sides = [math.ceil(side / stride) for side in sides]
            conv = nn.Conv2d(depth, width, 3, stride=stride, padding=1, bias=False)
            layers += [conv, nn.BatchNorm2d(width), nn.ReLU()]
            depth = width
        self.shape = (channels, *sides)
        self.stem = nn.Sequential(*layers)
        self.inner = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.GroupNorm(_GROUPS, channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
        )
        self.before = nn.GroupNorm(_GROUPS, channels)
        self.after = nn.GroupNorm(_GROUPS, channels)
        self.outputs = nn.Sequential(
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Linear(4 * channels, classes),
        )

    def inject(self, x: Tensor) -> Tensor:
        """Return the injected features, [N, ...] -> [N, K]."""
        return cast(Tensor, self.stem(x).flatten(1))

    def start(self, u: Tensor) -> Tensor:
        """Return the initial state, zeros [N, D]."""
        return u.new_zeros(u.shape)

    def cell(self, z: Tensor, u: Tensor) -> Tensor:
        """Apply the cell once, [N, D] and [N, K] -> [N, D]."""
        state, injected = (v.view(-1, *self.shape) for v in (z, u))
        change = self.before(self.inner(state) + injected)
        return cast(Tensor, self.after((state + change).relu()).flatten(1))

    def head(self, z: Tensor) -> Tensor:
        """Return the logits of a state, [N, D] -> [N, C]."""
        return cast(Tensor, self.outputs(z.view(-1, *self.shape)))
