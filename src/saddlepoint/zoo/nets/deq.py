"""Equilibrium networks at one resolution that always have an equilibrium."""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import register_parametrization

_DEPTH = (
    3  # k below: within a sixth of the norm for random weights, at the cost of a few small products
)


class DenseDEQNet(nn.Module):
    """z = relu(W z + U x + b) with ||W||_2 <= gain.

    Then ||f(z) - f(z')|| <= gain ||z - z'||, so that for gain < 1 there is one equilibrium and n plain steps from zero come within
    gain^n ||z*|| of it. With gain = inf nothing is bounded.
    """

    def __init__(
        self,
        *,
        image: tuple[int, int, int] = (1, 8, 8),
        size: int = 128,
        classes: int = 10,
        gain: float = 0.9,
    ) -> None:
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
    """z = relu(V * relu(W * z + b) + u(x)) with convolutions V and W of norm at most `gain`: a step contracts by gain^2.

    The state has `channels` at the image's resolution divided by `stride`.
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
            nn.Conv2d(depth, channels, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, stride=stride, padding=1),
        )
        self.inner = nn.Sequential(
            _bounded(nn.Conv2d(channels, channels, 3, padding=1), gain),
            nn.ReLU(),
            _bounded(nn.Conv2d(channels, channels, 3, padding=1, bias=False), gain),
        )
        self.outputs = nn.Sequential(
            nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(16 * channels, classes)
        )

    def inject(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.features(x).flatten(1))

    def start(self, u: Tensor) -> Tensor:
        return u.new_zeros(u.shape)

    def cell(self, z: Tensor, u: Tensor) -> Tensor:
        return cast(Tensor, (self.inner(z.view(-1, *self.shape)).flatten(1) + u).relu())

    def head(self, z: Tensor) -> Tensor:
        return cast(Tensor, self.outputs(z.view(-1, *self.shape)))


class Bounded(nn.Module):
    """V -> V min(1, gain / s) with s >= ||V||_2, for a matrix or a convolution with zeros beyond the border.

    With G_1 = V V^T and G_{k+1} = G_k^2, the root s = ||G_k||_inf^(1 / 2^k) falls to the norm as k grows (Delattre et al. 2023). A
    convolution copies every pixel at most `area` times and multiplies by its kernel as a matrix [out, in area], so that its norm is
    at most sqrt(area) times that matrix's. Unlike an estimate by power iteration s is never below the norm, and it keeps no state:
    every call gives the same weight.
    """

    def __init__(self, gain: float) -> None:
        super().__init__()
        self.gain = gain

    def forward(self, v: Tensor) -> Tensor:
        matrix = v.flatten(1)
        area = math.prod(v.shape[2:])
        gram = matrix @ matrix.T
        for _ in range(_DEPTH - 1):
            gram = gram @ gram
        largest = (
            gram.abs().sum(1).amax().clamp(min=torch.finfo(v.dtype).tiny)
        )  # the root has no slope at zero
        return v / (math.sqrt(area) * largest ** (0.5**_DEPTH) / self.gain).clamp(min=1)


def _bounded(layer: nn.Module, gain: float) -> nn.Module:
    if not gain > 0:
        raise ValueError(
            f"the gain of an equilibrium network must be positive, got {gain}. Below 1 an equilibrium is certain."
        )
    return register_parametrization(layer, "weight", Bounded(gain))
