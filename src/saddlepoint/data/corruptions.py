"""Common corruptions: noise, blur, fog, brightness (Hendrycks & Dietterich 2019).

Every corruption takes images x [N, C, H, W] in [0, 1], a severity from 1 to 5 and per-example
random keys. It returns images quantized to 8 bits. The same arguments give the same images, and the
noise of an image does not depend on the rest of the batch.

Severities are those of CIFAR-10-C, defined for 32x32 images. Ten of its fifteen corruptions are
implemented, and two of the four that it reserves for validation. Glass blur, snow, frost, elastic
transformation, JPEG, spatter and saturation are not: they need photographs of frost, an
image-processing library, or both. Pixel values are rounded to bytes; the original code truncates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import numpy as np
import torch
from scipy.special import pdtr
from torch import Tensor
from torch.nn.functional import conv2d, grid_sample, pad

from saddlepoint.rng import Keys

Corruption = Callable[[Tensor, int, Keys], Tensor]
Level = TypeVar("Level")


def gaussian_noise(x: Tensor, severity: int, keys: Keys) -> Tensor:
    """Add Gaussian noise with standard deviation s."""
    std = _level((0.04, 0.06, 0.08, 0.09, 0.10), severity)
    return _to_bytes(x + std * keys.normal(tuple(x.shape[1:]), x.dtype))


def shot_noise(x: Tensor, severity: int, keys: Keys) -> Tensor:
    """Replace each value by Poisson(k x) / k, where k photons make a white pixel."""
    photons = _level((500, 250, 100, 75, 50), severity)
    # A byte has 256 values, so there are 256 distributions. Their CDFs form a table. Row r of the
    # table is shifted by 2 r, so that one search in a single sorted list inverts all of them.
    max_count = photons + 12 * math.isqrt(photons)
    row = (x * 255).round().long()
    cdf = torch.from_numpy(
        pdtr(np.arange(max_count), photons * np.arange(256)[:, None] / 255)
    )  # [256, max_count]
    shifted = (cdf.clamp(max=1) + 2 * torch.arange(256)[:, None]).flatten().to(x.device)
    uniform = keys.uniform(tuple(x.shape[1:]), torch.float64)
    count = torch.searchsorted(shifted, uniform + 2 * row, right=True) - max_count * row
    return _to_bytes(count.to(x) / photons)


def impulse_noise(x: Tensor, severity: int, keys: Keys) -> Tensor:
    """Set a fraction of the values to 0 or 1, with equal probability."""
    fraction = _level((0.01, 0.02, 0.03, 0.05, 0.07), severity)
    hit = keys.uniform(tuple(x.shape[1:])) < fraction
    impulses = keys.fold_in(1).signs(tuple(x.shape[1:]), x.dtype).clamp(min=0)
    return _to_bytes(torch.where(hit, impulses, x))


def speckle_noise(x: Tensor, severity: int, keys: Keys) -> Tensor:
    """Return x (1 + s n), where n is standard normal noise."""
    std = _level((0.06, 0.1, 0.12, 0.16, 0.2), severity)
    return _to_bytes(x + std * x * keys.normal(tuple(x.shape[1:]), x.dtype))


def gaussian_blur(x: Tensor, severity: int, keys: Keys) -> Tensor:  # noqa: ARG001
    """Blur with a Gaussian kernel truncated at four standard deviations."""
    std = _level((0.4, 0.6, 0.7, 0.8, 1.0), severity)
    line = _gaussian_weights(math.ceil(4 * std), std)
    return _to_bytes(_filter(x, line[:, None] * line[None, :], "replicate"))


def defocus_blur(x: Tensor, severity: int, keys: Keys) -> Tensor:  # noqa: ARG001
    """Blur with a disk whose edge is smoothed by a 3x3 Gaussian."""
    radius, std = _level(((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1.0, 0.2), (1.5, 0.1)), severity)
    reach = math.floor(radius) + 1
    offset = torch.arange(-reach, reach + 1, dtype=torch.float64)
    disk = (offset[:, None] ** 2 + offset[None, :] ** 2 <= radius**2).double()
    line = _gaussian_weights(1, std)
    smoothing = line[:, None] * line[None, :]
    kernel = conv2d(disk[None, None] / disk.sum(), smoothing[None, None], padding=1)[0, 0]
    return _to_bytes(_filter(x, kernel, "reflect"))


def motion_blur(x: Tensor, severity: int, keys: Keys) -> Tensor:
    """Average along a line that starts at each pixel, with the weights of a half Gaussian.

    The angle is uniform in -45 to 45 degrees from the horizontal, drawn per image. Values between
    pixels are interpolated; values outside the image repeat its edge. Severities 3 and 4 differ
    only in where the Gaussian is truncated, at six standard deviations or more, which has no
    visible effect.
    """
    radius, std = _level(((6, 1.0), (6, 1.5), (6, 2.0), (8, 2.0), (9, 2.5)), severity)
    weights = _gaussian_weights(2 * radius, std)[2 * radius :]
    angle = (keys.uniform((), torch.float64) - 0.5) * math.pi / 2  # [N]
    direction = torch.stack([angle.cos(), angle.sin()], 1).to(x)
    blurred = sum(
        weight * _resample(x, k * direction, 1.0)
        for k, weight in enumerate((weights / weights.sum()).tolist())
    )
    return _to_bytes(torch.as_tensor(blurred))


def zoom_blur(x: Tensor, severity: int, keys: Keys) -> Tensor:  # noqa: ARG001
    """Average the image and its magnifications by 1, 1.01, ... about the center."""
    # The largest magnification in percent. These are the ranges of the original code.
    last = _level((6, 11, 15, 20, 25), severity)
    no_shift = x.new_zeros(len(x), 2)
    zoomed = [_resample(x, no_shift, 1 / (1 + k / 100)) for k in range(last + 1)]
    return _to_bytes((x + torch.stack(zoomed).sum(0)) / (last + 2))


def fog(x: Tensor, severity: int, keys: Keys) -> Tensor:
    """Return (x + t p) m / (m + t).

    p in [0, 1] is a fractal fog pattern, t its thickness, m the largest value of the image.
    """
    thickness, decay = _level(
        ((0.2, 3.0), (0.5, 3.0), (0.75, 2.5), (1.0, 2.0), (1.5, 1.75)), severity
    )
    height, width = x.shape[-2:]
    side = 2 ** math.ceil(math.log2(max(height, width)))
    pattern = plasma(side, decay, keys)[:, None, :height, :width].to(x)
    largest = x.flatten(1).amax(1)[:, None, None, None]
    return _to_bytes((x + thickness * pattern) * largest / (largest + thickness))


def brightness(x: Tensor, severity: int, keys: Keys) -> Tensor:  # noqa: ARG001
    """Add a constant to the HSV value, max_c x_c.

    Hue and saturation are kept: the channels of a pixel are scaled together. Black becomes gray.
    """
    increase = _level((0.05, 0.1, 0.15, 0.2, 0.3), severity)
    value = x.amax(1, keepdim=True)
    lighter = (value + increase).clamp(max=1)
    return _to_bytes(
        torch.where(value > 0, x * lighter / value.clamp(min=torch.finfo(x.dtype).tiny), lighter)
    )


def contrast(x: Tensor, severity: int, keys: Keys) -> Tensor:  # noqa: ARG001
    """Return m + c (x - m), where m is the mean of each channel."""
    factor = _level((0.75, 0.5, 0.4, 0.3, 0.15), severity)
    mean = x.mean((2, 3), keepdim=True)
    return _to_bytes((x - mean) * factor + mean)


def pixelate(x: Tensor, severity: int, keys: Keys) -> Tensor:  # noqa: ARG001
    """Downsample and upsample with a box filter.

    Each output pixel is the mean of the input pixels whose centers it covers.
    """
    scale = _level((0.95, 0.9, 0.85, 0.75, 0.65), severity)
    coarse = [max(int(side * scale), 1) for side in x.shape[-2:]]
    vertical, horizontal = (
        (_box_filter(side, small) @ _box_filter(small, side)).to(x)
        for side, small in zip(x.shape[-2:], coarse, strict=True)
    )
    return _to_bytes(vertical @ x @ horizontal.T)


CORRUPTIONS: Mapping[str, Corruption] = {
    corruption.__name__: corruption
    for corruption in (
        gaussian_noise,
        shot_noise,
        impulse_noise,
        speckle_noise,
        gaussian_blur,
        defocus_blur,
        motion_blur,
        zoom_blur,
        fog,
        brightness,
        contrast,
        pixelate,
    )
}


def plasma(side: int, decay: float, keys: Keys) -> Tensor:
    """Draw a fractal pattern by midpoint displacement on a torus.

    This is the diamond-square algorithm (Fournier et al. 1982). The center of each square and of
    each diamond of the grid is the mean of its four corners plus noise. Each refinement of the grid
    divides the noise amplitude by decay^2.

    Args:
        side: Width and height, a power of two of at least 2.
        decay: Square root of the factor by which the noise shrinks per refinement.
        keys: Random keys, one per pattern.

    Returns:
        [N, side, side] float64; each pattern has minimum 0 and maximum 1.

    Raises:
        ValueError: `side` is not a power of two of at least 2.
    """
    if side < 2 or side & (side - 1):
        raise ValueError(f"side must be a power of two of at least 2, got side={side}.")
    grid = torch.zeros(len(keys), 1, 1, dtype=torch.float64, device=keys.base.device)
    amplitude = 1.0
    while (k := grid.shape[-1]) < side:
        noise = amplitude * (2 * keys.fold_in(k).uniform((3, k, k), torch.float64) - 1)
        grid = _refine(grid, noise)
        amplitude = amplitude / decay**2
    low = grid.flatten(1).amin(1)
    high = grid.flatten(1).amax(1)
    return (grid - low[:, None, None]) / (high - low)[:, None, None]


def _refine(grid: Tensor, noise: Tensor) -> Tensor:
    """One step of diamond-square: [N, k, k] and noise [N, 3, k, k] -> [N, 2 k, 2 k]."""
    k = grid.shape[-1]
    down = grid.roll(-1, 1)
    right = grid.roll(-1, 2)
    center = (grid + down + right + down.roll(-1, 2)) / 4 + noise[:, 0]
    horizontal = (grid + right + center + center.roll(1, 1)) / 4 + noise[:, 1]  # edge midpoints
    vertical = (grid + down + center + center.roll(1, 2)) / 4 + noise[:, 2]
    top = torch.stack([grid, horizontal], -1)
    bottom = torch.stack([vertical, center], -1)
    return torch.stack([top, bottom], 2).reshape(-1, 2 * k, 2 * k)  # from [N, k, 2, k, 2]


def _level(levels: Sequence[Level], severity: int) -> Level:
    if severity not in range(1, len(levels) + 1):
        raise ValueError(f"severity must be 1 to {len(levels)}, got {severity}.")
    return levels[severity - 1]


def _to_bytes(x: Tensor) -> Tensor:
    """Clip to [0, 1] and round to a multiple of 1/255."""
    return (x.clamp(0, 1) * 255).round() / 255


def _gaussian_weights(reach: int, std: float) -> Tensor:
    """[2 reach + 1] Gaussian weights that sum to one."""
    offset = torch.arange(-reach, reach + 1, dtype=torch.float64)
    weights = (-0.5 * (offset / std) ** 2).exp()
    return weights / weights.sum()


def _filter(x: Tensor, kernel: Tensor, padding: str) -> Tensor:
    """Filter each channel with the same kernel [k, k], k odd.

    `padding` is a padding mode of `torch.nn.functional.pad`.
    """
    channels = x.shape[1]
    reach = len(kernel) // 2
    weights = kernel.to(x).expand(channels, 1, *kernel.shape)
    return conv2d(pad(x, [reach] * 4, mode=padding), weights, groups=channels)


def _box_filter(size: int, source: int) -> Tensor:
    """[size, source] matrix that resamples `source` pixels to `size` pixels in one dimension.

    Row i averages the source pixels whose centers lie inside output pixel i.
    """
    scale = source / size
    center = (torch.arange(size, dtype=torch.float64)[:, None] + 0.5) * scale
    offset = (torch.arange(source, dtype=torch.float64) + 0.5 - center) / max(scale, 1.0)
    inside = ((offset > -0.5) & (offset <= 0.5)).double()
    return inside / inside.sum(1, keepdim=True)


def _resample(x: Tensor, shift: Tensor, scale: float) -> Tensor:
    """Sample the image at scale p + shift, where p is the pixel position relative to the center.

    `shift` is [N, 2] in pixels, (right, down). Interpolation is bilinear; edges are repeated.
    """
    n, _, height, width = x.shape
    down = torch.arange(height, device=x.device, dtype=x.dtype) - (height - 1) / 2
    right = torch.arange(width, device=x.device, dtype=x.dtype) - (width - 1) / 2
    horizontal = (scale * right + shift[:, :1]) * 2 / width  # [N, W]
    vertical = (scale * down + shift[:, 1:]) * 2 / height  # [N, H]
    grid = torch.stack(
        [
            horizontal[:, None, :].expand(n, height, width),
            vertical[:, :, None].expand(n, height, width),
        ],
        -1,
    )
    return grid_sample(x, grid, mode="bilinear", padding_mode="border", align_corners=False)
