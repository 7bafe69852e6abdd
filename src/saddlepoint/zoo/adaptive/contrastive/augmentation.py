"""Random crops and color changes as a differentiable function of image and uniform numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from saddlepoint.attacks.spaces import per_example

_LUMA = (0.299, 0.587, 0.114)  # weights of red, green and blue


@dataclass(frozen=True)
class Augmentation:
    """The augmentations of SimCLR (Chen et al. 2020).

    They are a resized crop, a horizontal flip, changes of brightness, contrast, saturation and hue
    in random order, and a conversion to gray. The result is a function of the image and of
    `random_numbers` uniform numbers per example, which determine all random choices.

    Crops have whole pixels and are resized bilinearly. A crop larger than the image is reduced to
    the image, where torchvision draws again. Images without three channels are only cropped,
    flipped and changed in brightness and contrast.
    """

    area: tuple[float, float] = (0.08, 1.0)  # range of the crop's area as a fraction of the image
    ratio: tuple[float, float] = (3 / 4, 4 / 3)  # range of width divided by height
    brightness: float = 0.8  # the factor is in 1 +- this
    contrast: float = 0.8  # the factor is in 1 +- this
    saturation: float = 0.8  # the factor is in 1 +- this
    hue: float = 0.2  # largest rotation, as a fraction of a full turn
    gray: float = 0.2  # probability

    random_numbers: ClassVar[int] = 14  # per example

    def __call__(self, x: Tensor, u: Tensor) -> Tensor:
        """Augment images.

        Args:
            x: [N, C, H, W] images in [0, 1].
            u: [N, 14] uniform numbers in [0, 1).

        Returns:
            [N, C, H, W] augmented images.

        Raises:
            ValueError: If x does not have four dimensions.
        """
        if x.ndim != 4:
            raise ValueError(f"Augmentation needs images [N, C, H, W], got {list(x.shape)}.")
        size, position, flip, strength, order, gray = torch.tensor_split(u, (2, 4, 5, 9, 13), dim=1)
        x = self._crop(x, size, position, flip[:, 0] < 0.5)
        x = self._change_colors(x, strength, order.argsort(dim=1))
        if x.shape[1] != 3:
            return x
        return torch.where(per_example(gray[:, 0] < self.gray, x), _to_gray(x).expand_as(x), x)

    def _crop(self, x: Tensor, size: Tensor, position: Tensor, flip: Tensor) -> Tensor:
        height, width = x.shape[2:]
        area = height * width * _interpolate(size[:, 0], *self.area)
        low, high = (math.log(bound) for bound in self.ratio)
        ratio = _interpolate(size[:, 1], low, high).exp()
        crop_height = (area / ratio).sqrt().round().clamp(1, height)
        crop_width = (area * ratio).sqrt().round().clamp(1, width)
        top = (position[:, 0] * (height - crop_height + 1)).floor()
        left = (position[:, 1] * (width - crop_width + 1)).floor()
        rows = _resampling_weights(top, crop_height, height)  # [N, H, H]
        columns = _resampling_weights(left, crop_width, width)  # [N, W, W]
        columns = torch.where(flip[:, None, None], columns.flip(1), columns)
        return torch.einsum("nij,ncjk,nlk->ncil", rows, x, columns)

    def _change_colors(self, x: Tensor, strength: Tensor, order: Tensor) -> Tensor:
        """Apply the color changes; order [N, 4] has the index of the first, second, ... change."""
        changes = self._changes(strength, colored=x.shape[1] == 3)
        for k in range(4):
            for index, change in enumerate(changes):
                selected = order[:, k] == index
                # If all examples share their numbers, only one change is selected at a time.
                if selected.any():
                    x = torch.where(per_example(selected, x), change(x), x)
        return x

    def _changes(self, strength: Tensor, *, colored: bool) -> list[Callable[[Tensor], Tensor]]:
        """Return the color changes: brightness, contrast and, if colored, saturation and hue."""

        def factor(k: int, spread: float) -> Tensor:
            return _interpolate(strength[:, k], max(0.0, 1 - spread), 1 + spread)

        brightness = factor(0, self.brightness)
        contrast = factor(1, self.contrast)
        saturation = factor(2, self.saturation)
        changes: list[Callable[[Tensor], Tensor]] = [
            lambda x: _blend(x, torch.zeros_like(x), brightness),
            lambda x: _blend(x, _to_gray(x).mean((1, 2, 3), keepdim=True), contrast),
        ]
        if colored:
            turn = _interpolate(strength[:, 3], -self.hue, self.hue)
            changes += [
                lambda x: _blend(x, _to_gray(x), saturation),
                lambda x: _rotate_hue(x, turn),
            ]
        return changes


def _interpolate(u: Tensor, low: float, high: float) -> Tensor:
    return low + (high - low) * u


def _resampling_weights(start: Tensor, length: Tensor, size: int) -> Tensor:
    """Return weights [N, size, size] of a bilinear resize along one side.

    They map the pixels start .. start + length - 1 to `size` pixels.
    """
    grid = torch.arange(size, device=start.device, dtype=start.dtype)
    source = (grid + 0.5) * length[:, None] / size - 0.5  # pixel centers, relative to the crop
    source = start[:, None] + torch.minimum(source.clamp(min=0), length[:, None] - 1)
    return (1 - (source[:, :, None] - grid).abs()).clamp(min=0)


def _blend(x: Tensor, other: Tensor, factor: Tensor) -> Tensor:
    f = per_example(factor, x)
    return (f * x + (1 - f) * other).clamp(0, 1)


def _to_gray(x: Tensor) -> Tensor:
    """Return [N, 1, H, W]: the luma of an RGB image, or the mean of other channels."""
    if x.shape[1] != 3:
        return x.mean(1, keepdim=True)
    return torch.einsum("c,nchw->nhw", x.new_tensor(_LUMA), x)[:, None]


def _rotate_hue(x: Tensor, turn: Tensor) -> Tensor:
    """Rotate the hue by a fraction `turn` [N] of a full turn; value and chroma stay.

    With hue h in sixths of a turn, value V and chroma C, a channel is
    V - C clip(min(k, 4 - k), 0, 1), where k = (5 + h, 3 + h, 1 + h) mod 6 for red, green, blue.
    """
    value = x.amax(1)
    chroma = value - x.amin(1)
    red, green, blue = (x / torch.where(chroma > 0, chroma, 1.0)[:, None]).unbind(1)
    is_red = value == x[:, 0]
    is_green = value == x[:, 1]
    hue = torch.where(is_red, green - blue, torch.where(is_green, blue - red + 2, red - green + 4))
    hue = hue + 6 * turn[:, None, None]
    parts = [(n + hue).remainder(6) for n in (5, 3, 1)]
    return torch.stack([value - chroma * torch.minimum(k, 4 - k).clamp(0, 1) for k in parts], dim=1)
