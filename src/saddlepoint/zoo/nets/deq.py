"""Equilibrium networks at one resolution that always have an equilibrium."""

from __future__ import annotations

import math
from typing import cast

from torch import Tensor, nn
from torch.nn.utils.parametrize import register_parametrization


class DenseDEQNet(nn.Module):
    """z = relu(W z + U x + b), the rows of W no longer than `gain` in the sum of absolute values.

    Then ||f(z) - f(z')||_inf <= gain ||z - z'||_inf, so that for gain < 1 there is one equilibrium and n plain steps from zero come
    within gain^n ||z*||_inf of it (El Ghaoui et al. 2021 call such a W well-posed). With gain = inf nothing is bounded.
    """

    def __init__(self, *, image: tuple[int, int, int] = (1, 8, 8), size: int = 128, classes: int = 10, gain: float = 0.9) -> None:
        super().__init__()
        self.size = size
        self.inputs = nn.Linear(math.prod(image), size)
        self.inner = _bounded(nn.Linear(size, size, bias=False), gain)
        self.outputs = nn.Linear(size, classes)

    def inject(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.inputs(x.flatten(1)))

    def start(self, u: Tensor) -> Tensor:
        return u.new_zeros(len(u), self.size)

    def cell(self, z: Tensor, u: Tensor) -> Tensor:
        return cast(Tensor, (self.inner(z) + u).relu())

    def head(self, z: Tensor) -> Tensor:
        return cast(Tensor, self.outputs(z))


class ConvDEQNet(nn.Module):
    """z = relu(V * relu(W * z + b) + u(x)), V and W convolutions whose kernels are no longer than `gain` as in `DenseDEQNet`.

    A convolution with zeros beyond the border is a matrix whose rows are kernels, or parts of one at the border: the cell contracts
    by gain^2 per step in the largest absolute value. The state has `channels` at the image's resolution divided by `stride`.
    """

    def __init__(
        self,
        *,
        image: tuple[int, int, int] = (1, 8, 8),
        channels: int = 32,
        stride: int = 1,
        classes: int = 10,
        gain: float = 0.9,
    ) -> None:
        super().__init__()
        depth, height, width = image
        self.shape = (channels, -(-height // stride), -(-width // stride))
        self.features = nn.Sequential(
            nn.Conv2d(depth, channels, 3, padding=1), nn.ReLU(), nn.Conv2d(channels, channels, 3, stride=stride, padding=1)
        )
        self.inner = nn.Sequential(
            _bounded(nn.Conv2d(channels, channels, 3, padding=1), gain),
            nn.ReLU(),
            _bounded(nn.Conv2d(channels, channels, 3, padding=1, bias=False), gain),
        )
        self.outputs = nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(16 * channels, classes))

    def inject(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.features(x).flatten(1))

    def start(self, u: Tensor) -> Tensor:
        return u.new_zeros(u.shape)

    def cell(self, z: Tensor, u: Tensor) -> Tensor:
        return cast(Tensor, (self.inner(z.view(-1, *self.shape)).flatten(1) + u).relu())

    def head(self, z: Tensor) -> Tensor:
        return cast(Tensor, self.outputs(z.view(-1, *self.shape)))


class ShortRows(nn.Module):
    """w_i = v_i min(1, gain / ||v_i||_1) for every output i: the matrix, or the convolution, has ||W||_inf <= gain.

    Unlike a spectral norm found by power iteration, this keeps no state: every call gives the same weight.
    """

    def __init__(self, gain: float) -> None:
        super().__init__()
        self.gain = gain

    def forward(self, v: Tensor) -> Tensor:
        length = v.abs().flatten(1).sum(1).view(-1, *[1] * (v.ndim - 1))
        return v / (length / self.gain).clamp(min=1)


def _bounded(layer: nn.Module, gain: float) -> nn.Module:
    if not gain > 0:
        raise ValueError(f"the gain of an equilibrium network must be positive, got {gain}. Below 1 an equilibrium is certain.")
    return register_parametrization(layer, "weight", ShortRows(gain))
