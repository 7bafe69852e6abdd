"""Images that got worse without anybody meaning harm: noise, blur, fog, light (Hendrycks & Dietterich 2019).

Every function takes images x [N, C, H, W] in [0, 1], a severity from 1 to 5 and coins, and gives images of 8 bits: the same
arguments give the same images, and an image's noise does not depend on its neighbors. Severities are those for images of 32x32
pixels, by which CIFAR-10-C was made. Of its fifteen corruptions ten are here, and two of the four kept for validation. Not here:
glass blur, snow, frost, elastic transformations and jpeg, also spatter and saturation: they need pictures of frost, a library of
image processing, or both. Bytes are rounded where the original cuts off.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import numpy as np
import torch
from scipy.stats import poisson
from torch import Tensor
from torch.nn.functional import conv2d, grid_sample, pad

from saddlepoint.rng import Keys

Corruption = Callable[[Tensor, int, Keys], Tensor]
Level = TypeVar("Level")


def gaussian_noise(x: Tensor, severity: int, keys: Keys) -> Tensor:
    """x + s normal noise."""
    spread = _level((0.04, 0.06, 0.08, 0.09, 0.10), severity)
    return _bytes(x + spread * keys.normal(tuple(x.shape[1:]), x.dtype))


def shot_noise(x: Tensor, severity: int, keys: Keys) -> Tensor:
    """Poisson(k x) / k: what is left when only k photons make a white pixel."""
    photons = _level((500, 250, 100, 75, 50), severity)
    # A byte has 256 values, so there are 256 distributions. Row r of the table is raised by 2 r: one sorted list to search.
    most = photons + 12 * math.isqrt(photons)
    row = (x * 255).round().long()
    chances = torch.from_numpy(
        poisson.cdf(np.arange(most), photons * np.arange(256)[:, None] / 255)
    )  # [256, most]
    raised = (chances.clamp(max=1) + 2 * torch.arange(256)[:, None]).flatten().to(x.device)
    drawn = keys.uniform(tuple(x.shape[1:]), torch.float64)
    counted = torch.searchsorted(raised, drawn + 2 * row, right=True) - most * row
    return _bytes(counted.to(x) / photons)


def impulse_noise(x: Tensor, severity: int, keys: Keys) -> Tensor:
    """A share of the values becomes 0 or 1, as often the one as the other."""
    share = _level((0.01, 0.02, 0.03, 0.05, 0.07), severity)
    hit = keys.uniform(tuple(x.shape[1:])) < share
    return _bytes(
        torch.where(hit, keys.fold_in(1).signs(tuple(x.shape[1:]), x.dtype).clamp(min=0), x)
    )


def speckle_noise(x: Tensor, severity: int, keys: Keys) -> Tensor:
    """x (1 + s normal noise)."""
    spread = _level((0.06, 0.1, 0.12, 0.16, 0.2), severity)
    return _bytes(x + spread * x * keys.normal(tuple(x.shape[1:]), x.dtype))


def gaussian_blur(x: Tensor, severity: int, keys: Keys) -> Tensor:  # noqa: ARG001
    """The mean under a Gaussian, cut off at four standard deviations."""
    width = _level((0.4, 0.6, 0.7, 0.8, 1.0), severity)
    line = _bell(math.ceil(4 * width), width)
    return _bytes(_filtered(x, line[:, None] * line[None, :], "replicate"))


def defocus_blur(x: Tensor, severity: int, keys: Keys) -> Tensor:  # noqa: ARG001
    """The mean over a disk whose edge is softened by a 3x3 Gaussian."""
    radius, soft = _level(((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1.0, 0.2), (1.5, 0.1)), severity)
    reach = math.floor(radius) + 1
    at = torch.arange(-reach, reach + 1, dtype=torch.float64)
    disk = (at[:, None] ** 2 + at[None, :] ** 2 <= radius**2).double()
    bell = _bell(1, soft)
    kernel = conv2d(
        disk[None, None] / disk.sum(), (bell[:, None] * bell[None, :])[None, None], padding=1
    )[0, 0]
    return _bytes(_filtered(x, kernel, "reflect"))


def motion_blur(x: Tensor, severity: int, keys: Keys) -> Tensor:
    """The mean along a line from each pixel, under one half of a Gaussian, at an angle of -45 to 45 degrees from the horizontal.

    Pixels between pixels are interpolated, and those beyond the edge repeat it. Severities 3 and 4 differ in where the tail of the
    Gaussian ends, six standard deviations out and more: nobody sees that.
    """
    radius, width = _level(((6, 1.0), (6, 1.5), (6, 2.0), (8, 2.0), (9, 2.5)), severity)
    weights = _bell(2 * radius, width)[2 * radius :]
    angle = (keys.uniform((), torch.float64) - 0.5) * math.pi / 2  # [N]
    along = torch.stack([angle.cos(), angle.sin()], 1).to(x)
    moved = sum(
        weight * _moved(x, k * along, 1.0)
        for k, weight in enumerate((weights / weights.sum()).tolist())
    )
    return _bytes(torch.as_tensor(moved))


def zoom_blur(x: Tensor, severity: int, keys: Keys) -> Tensor:  # noqa: ARG001
    """The mean of the image and of itself magnified by 1, 1.01, ... about its center."""
    last = _level(
        (6, 11, 15, 20, 25), severity
    )  # in hundredths: what the ranges of the original come to
    still = x.new_zeros(len(x), 2)
    zoomed = [_moved(x, still, 1 / (1 + k / 100)) for k in range(last + 1)]
    return _bytes((x + torch.stack(zoomed).sum(0)) / (last + 2))


def fog(x: Tensor, severity: int, keys: Keys) -> Tensor:
    """(x + t p) m / (m + t): a bank of fog p in [0, 1], as thick as t; m is the image's brightest value."""
    thickness, decay = _level(
        ((0.2, 3.0), (0.5, 3.0), (0.75, 2.5), (1.0, 2.0), (1.5, 1.75)), severity
    )
    height, width = x.shape[-2:]
    side = 2 ** math.ceil(math.log2(max(height, width)))
    bank = plasma(side, decay, keys)[:, None, :height, :width].to(x)
    brightest = x.flatten(1).amax(1)[:, None, None, None]
    return _bytes((x + thickness * bank) * brightest / (brightest + thickness))


def brightness(x: Tensor, severity: int, keys: Keys) -> Tensor:  # noqa: ARG001
    """The value of HSV, max_c x_c, raised by a constant: colors are multiplied, and black becomes gray."""
    raised = _level((0.05, 0.1, 0.15, 0.2, 0.3), severity)
    value = x.amax(1, keepdim=True)
    lighter = (value + raised).clamp(max=1)
    return _bytes(
        torch.where(value > 0, x * lighter / value.clamp(min=torch.finfo(x.dtype).tiny), lighter)
    )


def contrast(x: Tensor, severity: int, keys: Keys) -> Tensor:  # noqa: ARG001
    """m + c (x - m), m the mean of each channel."""
    kept = _level((0.75, 0.5, 0.4, 0.3, 0.15), severity)
    mean = x.mean((2, 3), keepdim=True)
    return _bytes((x - mean) * kept + mean)


def pixelate(x: Tensor, severity: int, keys: Keys) -> Tensor:  # noqa: ARG001
    """Made smaller and larger again, every pixel the mean of those whose centers it covers."""
    scale = _level((0.95, 0.9, 0.85, 0.75, 0.65), severity)
    coarse = [max(int(side * scale), 1) for side in x.shape[-2:]]
    down, right = (
        (_covering(side, few) @ _covering(few, side)).to(x)
        for side, few in zip(x.shape[-2:], coarse, strict=True)
    )
    return _bytes(down @ x @ right.T)


CORRUPTIONS: Mapping[str, Corruption] = {
    corruption.__name__: corruption
    for corruption in (
        gaussian_noise, shot_noise, impulse_noise, speckle_noise, gaussian_blur, defocus_blur, motion_blur, zoom_blur, fog,
        brightness, contrast, pixelate,
    )
}  # fmt: skip


def plasma(side: int, decay: float, keys: Keys) -> Tensor:
    """[N, side, side] double, from 0 to 1: a fractal landscape by midpoints, on a torus (diamond-square, Fournier et al. 1982).

    The center of each square and of each diamond of the grid is the mean of its four corners and noise; the noise of a grid twice
    as fine is weaker by decay^2. `side` is a power of two.
    """
    if side < 2 or side & (side - 1):
        raise ValueError(f"a landscape is as wide as a power of two from 2 up, got side={side}.")
    land = torch.zeros(len(keys), 1, 1, dtype=torch.float64, device=keys.state.device)
    strength = 1.0
    while (k := land.shape[-1]) < side:
        noise = strength * (2 * keys.fold_in(k).uniform((3, k, k), torch.float64) - 1)
        down = land.roll(-1, 1)
        right = land.roll(-1, 2)
        center = (land + down + right + down.roll(-1, 2)) / 4 + noise[:, 0]
        above = (land + right + center + center.roll(1, 1)) / 4 + noise[:, 1]  # on horizontal edges
        beside = (land + down + center + center.roll(1, 2)) / 4 + noise[:, 2]  # on vertical ones
        rows = torch.stack(
            [torch.stack([land, above], -1), torch.stack([beside, center], -1)], 2
        )  # [N, k, 2, k, 2]
        land = rows.reshape(-1, 2 * k, 2 * k)
        strength = strength / decay**2
    low = land.flatten(1).amin(1)
    high = land.flatten(1).amax(1)
    return (land - low[:, None, None]) / (high - low)[:, None, None]


def _level(levels: Sequence[Level], severity: int) -> Level:
    if severity not in range(1, len(levels) + 1):
        raise ValueError(f"severities are 1 to {len(levels)}, got {severity}.")
    return levels[severity - 1]


def _bytes(x: Tensor) -> Tensor:
    return (x.clamp(0, 1) * 255).round() / 255


def _bell(reach: int, width: float) -> Tensor:
    """[2 reach + 1] Gaussian weights that sum to one."""
    at = torch.arange(-reach, reach + 1, dtype=torch.float64)
    weights = (-0.5 * (at / width) ** 2).exp()
    return weights / weights.sum()


def _filtered(x: Tensor, kernel: Tensor, edge: str) -> Tensor:
    """Each channel by the same kernel [k, k], k odd; beyond the edge the image goes on as `edge` says."""
    channels = x.shape[1]
    reach = len(kernel) // 2
    weights = kernel.to(x).expand(channels, 1, *kernel.shape)
    return conv2d(pad(x, [reach] * 4, mode=edge), weights, groups=channels)


def _covering(size: int, given: int) -> Tensor:
    """[size, given] a box filter in one dimension: which of the given pixels' centers lie within each of the new pixels."""
    scale = given / size
    center = (torch.arange(size, dtype=torch.float64)[:, None] + 0.5) * scale
    off = (torch.arange(given, dtype=torch.float64) + 0.5 - center) / max(scale, 1.0)
    inside = ((off > -0.5) & (off <= 0.5)).double()
    return inside / inside.sum(1, keepdim=True)


def _moved(x: Tensor, by: Tensor, scale: float) -> Tensor:
    """The image at scale p + by, in pixels [N, 2] from the center; bilinear, edges repeated."""
    n, _, height, width = x.shape
    down = torch.arange(height, device=x.device, dtype=x.dtype) - (height - 1) / 2
    right = torch.arange(width, device=x.device, dtype=x.dtype) - (width - 1) / 2
    across = (scale * right + by[:, :1]) * 2 / width  # [N, W]
    along = (scale * down + by[:, 1:]) * 2 / height  # [N, H]
    grid = torch.stack(
        [across[:, None, :].expand(n, height, width), along[:, :, None].expand(n, height, width)],
        -1,
    )
    return grid_sample(x, grid, mode="bilinear", padding_mode="border", align_corners=False)
