"""Input transformations: the net sees an image from which detail was taken that attacks live in."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from saddlepoint.defenses import Context, Trace
from saddlepoint.zoo.adaptive.descent import slope
from saddlepoint.zoo.adaptive.inner import Purifier, shown, walk

# Luminance, at quality 50: ITU-T T.81, Annex K, Table K.1.
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
_SIDE = 8  # of a block


class Transformation(Protocol):
    """An image for an image."""

    @property
    def random(self) -> bool: ...
    def __call__(self, x: Tensor, ctx: Context) -> Tensor: ...  # [N, C, H, W] in [0, 1] -> the same


class Transformed(Purifier):
    """f(T(x)) for a transformation T (Guo et al. 2018): one step at the site `purify`.

    `purify/0` is what the net says to the image itself. Rounding has no slope: `BPDA()` takes T for the identity.
    """

    def __init__(self, net: nn.Module, transformation: Transformation) -> None:
        super().__init__(net, 1)
        self.transformation = transformation
        self.random = transformation.random

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        def step(t: int, v: Tensor) -> Tensor:  # noqa: ARG001
            return self.transformation(v, ctx)

        return shown(walk(step, x, self.steps, ctx), self.net, self.steps, ctx)


@dataclass(frozen=True)
class BitDepth:
    """round((2^bits - 1) x) / (2^bits - 1) (Xu et al. 2018; Guo et al. 2018, with 3 bits)."""

    bits: int = 3
    random: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.bits < 1:
            raise ValueError(f"BitDepth keeps at least one bit, got bits={self.bits}.")

    def __call__(self, x: Tensor, ctx: Context) -> Tensor:  # noqa: ARG002
        levels: int = 2**self.bits - 1
        return (levels * x).round() / levels


@dataclass(frozen=True)
class JPEG:
    """D^T (Q round((D b D^T) / Q)) D on blocks b of 8 x 8, D the cosine transform, Q the table of luminance for the quality.

    What of JPEG changes pixels. All channels are treated as luminance is, at full size: colors are neither converted nor halved.
    Pixels outside of the image repeat its edge. Guo et al. 2018 compress at quality 75.
    """

    quality: int = 75  # 1 .. 100
    random: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 1 <= self.quality <= 100:
            raise ValueError(
                f"the quality of JPEG lies between 1 and 100, got quality={self.quality}."
            )

    def __call__(self, x: Tensor, ctx: Context) -> Tensor:  # noqa: ARG002
        height, width = x.shape[-2:]
        padded = functional.pad(x, (0, -width % _SIDE, 0, -height % _SIDE), mode="replicate")
        down = padded.shape[-2] // _SIDE
        right = padded.shape[-1] // _SIDE
        blocks = padded.reshape(*x.shape[:2], down, _SIDE, right, _SIDE).transpose(
            -3, -2
        )  # [N, C, h, w, 8, 8]
        waves = _cosines().to(x)
        table = self.table().to(x)  # D, Q
        kept = table * (waves @ (255 * blocks - 128) @ waves.T / table).round()
        back: Tensor = ((waves.T @ kept @ waves + 128).round() / 255).clamp(0, 1)
        return back.transpose(-3, -2).reshape_as(padded)[..., :height, :width]

    def table(self) -> Tensor:
        """[8, 8] by how much each frequency is divided: scaled as the Independent JPEG Group does."""
        percent = 5000 / self.quality if self.quality < 50 else 200 - 2 * self.quality
        scaled = (torch.tensor(_LUMINANCE, dtype=torch.float64) * percent + 50) / 100
        return scaled.floor().clamp(1, 255)


@dataclass(frozen=True)
class TotalVariation:
    """argmin_z |M (z - x)|^2 / 2 + weight TV(z), M a random mask that keeps each pixel with probability 1 - drop.

    TV(z) = sum_i |z_{i, :} - z_{i-1, :}|_2 + sum_j |z_{:, j} - z_{:, j-1}|_2 over rows and columns of every channel (Guo et al.
    2018, with weight 0.03 and drop 0.5). They do not square the distance and use a solver of their own; here `steps` steps of
    gradient descent from x are taken, with |v|_2 rounded off to sqrt(|v|^2 + smooth^2), so that exact gradients cross them. Slopes
    then change by at most L = 1 + 8 weight / smooth per length, and steps of 1 / L times the slope go down.
    """

    weight: float = 0.03
    drop: float = 0.5
    steps: int = 100
    smooth: float = 0.01

    def __post_init__(self) -> None:
        if not 0 <= self.drop < 1 or self.weight < 0 or self.steps < 0 or self.smooth <= 0:
            raise ValueError(
                f"TotalVariation needs 0 <= drop < 1, weight >= 0, steps >= 0 and smooth > 0, got {self}."
            )

    @property
    def random(self) -> bool:
        return self.drop > 0 and self.steps > 0

    def __call__(self, x: Tensor, ctx: Context) -> Tensor:
        kept = (ctx.rand(*x.shape[-2:], dtype=x.dtype) >= self.drop)[:, None].to(
            x
        )  # all channels of a pixel go together
        z = x
        length = 1 / (1 + 8 * self.weight / self.smooth)
        for _ in range(self.steps):
            z = z - length * slope(self.objective(x, kept), z)
        return z.clamp(0, 1)

    def objective(self, x: Tensor, kept: Tensor) -> Callable[[Tensor], Tensor]:
        """[N, C, H, W] -> [N] what is made small."""

        def value(z: Tensor) -> Tensor:
            return (kept * (z - x)).square().flatten(1).sum(1) / 2 + self.weight * self.variation(z)

        return value

    def variation(self, z: Tensor) -> Tensor:
        """[N]: TV(z), rounded off."""
        down = z.diff(dim=-2).square().sum(-1)
        right = z.diff(dim=-1).square().sum(-2)  # [N, C, H - 1], [N, C, W - 1]
        return sum(
            ((part + self.smooth**2).sqrt().flatten(1).sum(1) for part in (down, right)),
            z.new_zeros(len(z)),
        )


def _cosines() -> Tensor:
    """[8, 8] orthonormal: D_kn = c_k cos(pi (2 n + 1) k / 16)."""
    k = torch.arange(_SIDE, dtype=torch.float64)
    waves = torch.cos(math.pi * (2 * k[None] + 1) * k[:, None] / (2 * _SIDE)) * (2 / _SIDE) ** 0.5
    return torch.cat([waves[:1] / 2**0.5, waves[1:]])
