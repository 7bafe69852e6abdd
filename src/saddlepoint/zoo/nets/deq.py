"""Equilibrium networks at one resolution, with a bound that guarantees an equilibrium."""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import register_parametrization

# k in `Bounded`. For random weights the bound is within a sixth of the norm, at the cost of a few
# small matrix products.
_DEPTH = 3


class DenseDEQNet(nn.Module):
    """z = relu(W z + U x + b) with ||W||_2 <= gain.

    Then ||f(z) - f(z')|| <= gain ||z - z'||. For gain < 1 there is exactly one equilibrium z*, and
    after n plain iterations from zero the distance to it is at most gain^n ||z*||.

    Args:
        image: Channels, height and width of the image.
        size: Dimension D of the state.
        classes: Number of classes.
        gain: The bound, above 0. With infinity W is not bounded.

    Raises:
        ValueError: `gain` is not positive.
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
        """Return the injected features, [N, ...] -> [N, K]."""
        return cast(Tensor, self.inputs(x.flatten(1)))

    def start(self, u: Tensor) -> Tensor:
        """Return the initial state, zeros [N, D]."""
        return u.new_zeros(len(u), self.size)

    def cell(self, z: Tensor, u: Tensor) -> Tensor:
        """Apply the cell once, [N, D] and [N, K] -> [N, D]."""
        return cast(Tensor, (self.inner(z) + u).relu())

    def head(self, z: Tensor) -> Tensor:
        """Return the logits of a state, [N, D] -> [N, C]."""
        return cast(Tensor, self.outputs(z))


class ConvDEQNet(nn.Module):
    """z = relu(V * relu(W * z + b) + u(x)) with convolutions V and W of norm at most `gain`.

    The Lipschitz constant of the cell is at most gain^2. For gain < 1 there is exactly one
    equilibrium.

    Args:
        image: Channels, height and width of the image.
        channels: Channels of the state.
        stride: The state has the resolution of the image divided by this.
        classes: Number of classes.
        gain: The bound, above 0. With infinity V and W are not bounded.

    Raises:
        ValueError: `gain` is not positive.
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
        """Return the injected features, [N, ...] -> [N, K]."""
        return cast(Tensor, self.features(x).flatten(1))

    def start(self, u: Tensor) -> Tensor:
        """Return the initial state, zeros [N, D]."""
        return u.new_zeros(u.shape)

    def cell(self, z: Tensor, u: Tensor) -> Tensor:
        """Apply the cell once, [N, D] and [N, K] -> [N, D]."""
        return cast(Tensor, (self.inner(z.view(-1, *self.shape)).flatten(1) + u).relu())

    def head(self, z: Tensor) -> Tensor:
        """Return the logits of a state, [N, D] -> [N, C]."""
        return cast(Tensor, self.outputs(z.view(-1, *self.shape)))


class Bounded(nn.Module):
    """V -> V min(1, gain / s) with s >= ||V||_2, for a matrix or a zero-padded convolution.

    With G_1 = V V^T and G_{k+1} = G_k^2, s = ||G_k||_inf^(1 / 2^k) decreases to the norm as k grows
    (Delattre et al. 2023). A convolution copies every pixel at most `area` times and multiplies by
    its kernel as a matrix [out, in area], so its norm is at most sqrt(area) times that of the
    matrix. Unlike an estimate by power iteration, s is never below the norm and has no state: every
    call returns the same weight.

    Args:
        gain: The bound of the norm.
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
        # The root is not differentiable at zero.
        largest = gram.abs().sum(1).amax().clamp(min=torch.finfo(v.dtype).tiny)
        return v / (math.sqrt(area) * largest ** (0.5**_DEPTH) / self.gain).clamp(min=1)


def _bounded(layer: nn.Module, gain: float) -> nn.Module:
    if not gain > 0:
        raise ValueError(
            f"the gain of an equilibrium network must be positive, got {gain}. "
            "Below 1 an equilibrium is guaranteed."
        )
    return register_parametrization(layer, "weight", Bounded(gain))
