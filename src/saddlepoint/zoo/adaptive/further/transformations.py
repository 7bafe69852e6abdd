"""Input transformations that remove detail from the image before it is classified."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from saddlepoint.defenses import Context, Trace
from saddlepoint.zoo.adaptive.gradient_steps import input_gradient
from saddlepoint.zoo.adaptive.purification import Purifier

# Quantization table of luminance at quality 50: ITU-T T.81, Annex K, Table K.1.
_LUMINANCE = (
    (16, 11, 10, 16, 24, 40, 51, 61),
    (12, 12, 14, 19, 26, 58, 60, 55),
    (14, 13, 16, 24, 40, 57, 69, 56),
    (14, 17, 22, 29, 51, 87, 80, 62),
    (18, 22, 37, 56, 68, 109, 103, 77),
    (24, 35, 55, 64, 81, 104, 113, 92),
    (49, 64, 78, 87, 103, 121, 120, 101),
    (72, 92, 95, 98, 112, 100, 103, 99),
)
_SIDE = 8  # pixels per side of a JPEG block


class Transformation(Protocol):
    """A transformation of images."""

    @property
    def random(self) -> bool:
        """Whether the result depends on random draws."""

    def __call__(self, x: Tensor, ctx: Context) -> Tensor:
        """Transform images x [N, C, H, W] in [0, 1] to images of the same shape."""


class TransformationDefense(Purifier):
    """Classify f(T(x)) for a transformation T (Guo et al. 2018): one step at the site `purify`.

    `purify/0` is the network on the image itself. Rounding has a zero gradient; `BPDA()` replaces
    the backward pass of T by the identity.

    Args:
        net: Classifier f: [N, C, H, W] -> [N, classes] in eval mode.
        transformation: Transformation T.
    """

    def __init__(self, net: nn.Module, transformation: Transformation) -> None:
        super().__init__(net, 1)
        self.transformation = transformation
        self.random = transformation.random

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        """Return the logits of the image and of the transformed image."""

        def step(t: int, v: Tensor) -> Tensor:  # noqa: ARG001
            return self.transformation(v, ctx)

        return self.classify_iterates(step, x, ctx)


@dataclass(frozen=True)
class BitDepth:
    """Reduce the bit depth: round((2^bits - 1) x) / (2^bits - 1).

    Xu et al. 2018; Guo et al. 2018, with 3 bits.
    """

    bits: int = 3
    random: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.bits < 1:
            raise ValueError(f"BitDepth needs at least one bit, got bits={self.bits}.")

    def __call__(self, x: Tensor, ctx: Context) -> Tensor:  # noqa: ARG002
        """Round images x in [0, 1] to 2^bits levels."""
        levels: int = 2**self.bits - 1
        return (levels * x).round() / levels


@dataclass(frozen=True)
class JPEG:
    """Apply the lossy part of JPEG compression: D^T (Q round((D b D^T) / Q)) D.

    b are blocks of 8 x 8 pixels, D is the discrete cosine transform and Q the luminance
    quantization table for the quality. All channels are treated like luminance at full resolution:
    colors are neither converted nor subsampled. The image is padded by repeating its edge. Guo et
    al. 2018 use quality 75.
    """

    quality: int = 75  # 1 .. 100
    random: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 1 <= self.quality <= 100:
            raise ValueError(f"JPEG needs a quality between 1 and 100, got quality={self.quality}.")

    def __call__(self, x: Tensor, ctx: Context) -> Tensor:  # noqa: ARG002
        """Compress and decompress images x [N, C, H, W] in [0, 1]."""
        height, width = x.shape[-2:]
        padded = functional.pad(x, (0, -width % _SIDE, 0, -height % _SIDE), mode="replicate")
        rows = padded.shape[-2] // _SIDE
        columns = padded.shape[-1] // _SIDE
        tiled = padded.reshape(*x.shape[:2], rows, _SIDE, columns, _SIDE)
        blocks = tiled.transpose(-3, -2)  # [N, C, rows, columns, 8, 8]
        dct = _dct_matrix().to(x)
        table = self.quantization_table().to(x)
        quantized = table * (dct @ (255 * blocks - 128) @ dct.T / table).round()
        decoded: Tensor = ((dct.T @ quantized @ dct + 128).round() / 255).clamp(0, 1)
        return decoded.transpose(-3, -2).reshape_as(padded)[..., :height, :width]

    def quantization_table(self) -> Tensor:
        """Return the divisor [8, 8] of each frequency, scaled as by the Independent JPEG Group."""
        percent = 5000 / self.quality if self.quality < 50 else 200 - 2 * self.quality
        scaled = (torch.tensor(_LUMINANCE, dtype=torch.float64) * percent + 50) / 100
        return scaled.floor().clamp(1, 255)


@dataclass(frozen=True)
class TotalVariation:
    """Minimize |M (z - x)|^2 / 2 + weight TV(z) over images z.

    M is a random mask that keeps each pixel with probability 1 - drop, and
    TV(z) = sum_i |z_{i, :} - z_{i-1, :}|_2 + sum_j |z_{:, j} - z_{:, j-1}|_2
    over rows and columns of every channel (Guo et al. 2018, with weight 0.03 and drop 0.5).

    Guo et al. do not square the distance and use their own solver. Here `steps` steps of gradient
    descent start at x, with |v|_2 smoothed to sqrt(|v|^2 + smooth^2), so that exact gradients
    exist. The gradient of the objective is Lipschitz continuous with constant at most
    L = 1 + 8 weight / smooth, so steps of 1 / L times the gradient decrease the objective.
    """

    weight: float = 0.03
    drop: float = 0.5  # probability of dropping a pixel
    steps: int = 100
    smooth: float = 0.01  # in units of the input

    def __post_init__(self) -> None:
        if not 0 <= self.drop < 1 or self.weight < 0 or self.steps < 0 or self.smooth <= 0:
            raise ValueError(
                "TotalVariation needs 0 <= drop < 1, weight >= 0, steps >= 0 and smooth > 0, "
                f"got {self}."
            )

    @property
    def random(self) -> bool:
        """Whether a random mask is drawn."""
        return self.drop > 0 and self.steps > 0

    def __call__(self, x: Tensor, ctx: Context) -> Tensor:
        """Denoise images x [N, C, H, W] in [0, 1]."""
        # All channels of a pixel are kept or dropped together.
        mask = (ctx.rand(*x.shape[-2:], dtype=x.dtype) >= self.drop)[:, None].to(x)
        z = x
        step_size = 1 / (1 + 8 * self.weight / self.smooth)
        for _ in range(self.steps):
            z = z - step_size * input_gradient(self.objective(x, mask), z)
        return z.clamp(0, 1)

    def objective(self, x: Tensor, mask: Tensor) -> Callable[[Tensor], Tensor]:
        """Return the minimized function [N, C, H, W] -> [N].

        Args:
            x: [N, C, H, W] images.
            mask: [N, 1, H, W], 1 for kept pixels and 0 for dropped ones.
        """

        def value(z: Tensor) -> Tensor:
            distance = (mask * (z - x)).square().flatten(1).sum(1) / 2
            return distance + self.weight * self.variation(z)

        return value

    def variation(self, z: Tensor) -> Tensor:
        """Return the smoothed total variation [N] of images z [N, C, H, W]."""
        between_rows = z.diff(dim=-2).square().sum(-1)  # [N, C, H - 1]
        between_columns = z.diff(dim=-1).square().sum(-2)  # [N, C, W - 1]
        differences = (between_rows, between_columns)
        norms = ((part + self.smooth**2).sqrt().flatten(1).sum(1) for part in differences)
        return sum(norms, z.new_zeros(len(z)))


def _dct_matrix() -> Tensor:
    """Return the orthonormal matrix [8, 8] with D_kn = c_k cos(pi (2 n + 1) k / 16)."""
    k = torch.arange(_SIDE, dtype=torch.float64)
    waves = torch.cos(math.pi * (2 * k[None] + 1) * k[:, None] / (2 * _SIDE)) * (2 / _SIDE) ** 0.5
    return torch.cat([waves[:1] / 2**0.5, waves[1:]])
