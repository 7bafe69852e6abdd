"""Random crops and colors as a differentiable function of the image and of uniform numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from saddlepoint.attacks.spaces import per_example

_GRAY = (0.299, 0.587, 0.114)  # luma of red, green and blue


@dataclass(frozen=True)
class Augmentation:
    """A resized crop, a mirror, brightness, contrast, saturation and hue in random order, gray: those of SimCLR (Chen et al. 2020).

    The image after them is a function of the image and of `numbers` uniform ones per example, which say everything that is random.
    Crops have whole pixels and are resized bilinearly. A crop that would be larger than the image is cut to it, where torchvision
    draws again. Images that are not in red, green and blue keep to the crop, the mirror, brightness and contrast.
    """

    area: tuple[float, float] = (0.08, 1.0)  # of the image
    ratio: tuple[float, float] = (3 / 4, 4 / 3)  # width to height
    brightness: float = 0.8  # the factor lies within 1 +- this
    contrast: float = 0.8
    saturation: float = 0.8
    hue: float = 0.2  # of a turn, either way
    gray: float = 0.2  # probability

    numbers: ClassVar[int] = 14

    def __call__(self, x: Tensor, u: Tensor) -> Tensor:
        """[N, C, H, W] in [0, 1] and [N, 14] uniform numbers -> [N, C, H, W]."""
        if x.ndim != 4:
            raise ValueError(
                f"augmentations are made for images [N, C, H, W], got {list(x.shape)}."
            )
        size, place, mirror, strength, order, gray = torch.tensor_split(u, (2, 4, 5, 9, 13), dim=1)
        x = self._crop(x, size, place, mirror[:, 0] < 0.5)
        turns = order.argsort(dim=1)  # [N, 4]: which change comes first, second, ...
        changes = self._changes(strength, colored=x.shape[1] == 3)
        for k in range(4):
            for which, change in enumerate(changes):
                here = turns[:, k] == which
                if here.any():  # rows that share their numbers have one change to make at a time
                    x = torch.where(per_example(here, x), change(x), x)
        if x.shape[1] != 3:
            return x
        return torch.where(per_example(gray[:, 0] < self.gray, x), _gray(x).expand_as(x), x)

    def _crop(self, x: Tensor, size: Tensor, place: Tensor, mirror: Tensor) -> Tensor:
        height, width = x.shape[2:]
        area = height * width * _between(size[:, 0], *self.area)
        ratio = _between(size[:, 1], math.log(self.ratio[0]), math.log(self.ratio[1])).exp()
        tall = (area / ratio).sqrt().round().clamp(1, height)
        wide = (area * ratio).sqrt().round().clamp(1, width)
        down = _resampling((place[:, 0] * (height - tall + 1)).floor(), tall, height)  # [N, H, H]
        right = _resampling((place[:, 1] * (width - wide + 1)).floor(), wide, width)
        right = torch.where(mirror[:, None, None], right.flip(1), right)
        return torch.einsum("nij,ncjk,nlk->ncil", down, x, right)

    def _changes(self, strength: Tensor, *, colored: bool) -> list[Callable[[Tensor], Tensor]]:
        def factor(k: int, spread: float) -> Tensor:
            return _between(strength[:, k], max(0.0, 1 - spread), 1 + spread)

        bright = factor(0, self.brightness)
        contrast = factor(1, self.contrast)
        saturation = factor(2, self.saturation)
        changes: list[Callable[[Tensor], Tensor]] = [
            lambda x: _blend(x, torch.zeros_like(x), bright),
            lambda x: _blend(x, _gray(x).mean((1, 2, 3), keepdim=True), contrast),
        ]
        if colored:
            turn = _between(strength[:, 3], -self.hue, self.hue)
            changes += [lambda x: _blend(x, _gray(x), saturation), lambda x: _turned(x, turn)]
        return changes


def _between(u: Tensor, low: float, high: float) -> Tensor:
    return low + (high - low) * u


def _resampling(start: Tensor, length: Tensor, size: int) -> Tensor:
    """[N, size, size]: the weights by which pixels start .. start + length - 1 become `size` pixels, by linear interpolation."""
    grid = torch.arange(size, device=start.device, dtype=start.dtype)
    source = (grid + 0.5) * length[:, None] / size - 0.5  # pixel centers, in the crop
    source = start[:, None] + torch.minimum(source.clamp(min=0), length[:, None] - 1)
    return (1 - (source[:, :, None] - grid).abs()).clamp(min=0)


def _blend(x: Tensor, other: Tensor, factor: Tensor) -> Tensor:
    f = per_example(factor, x)
    return (f * x + (1 - f) * other).clamp(0, 1)


def _gray(x: Tensor) -> Tensor:
    """[N, 1, H, W]: luma of a colored image, else the mean of its channels."""
    if x.shape[1] != 3:
        return x.mean(1, keepdim=True)
    return torch.einsum("c,nchw->nhw", x.new_tensor(_GRAY), x)[:, None]


def _turned(x: Tensor, turn: Tensor) -> Tensor:
    """The hue turned by so much of a circle; value and chroma stay.

    With hue h in sixths, a channel is V - C clip(min(k, 4 - k), 0, 1), where k = (5 + h, 3 + h, 1 + h) mod 6 for red, green, blue.
    """
    value = x.amax(1)
    least = x.amin(1)
    chroma = value - least
    red, green, blue = (x / torch.where(chroma > 0, chroma, 1.0)[:, None]).unbind(1)
    is_red = value == x[:, 0]
    is_green = value == x[:, 1]
    hue = torch.where(is_red, green - blue, torch.where(is_green, blue - red + 2, red - green + 4))
    hue = hue + 6 * turn[:, None, None]
    parts = [(n + hue).remainder(6) for n in (5, 3, 1)]
    return torch.stack([value - chroma * torch.minimum(k, 4 - k).clamp(0, 1) for k in parts], dim=1)
