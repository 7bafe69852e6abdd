"""Nearest-neighbor upsampling with today's gradient and with that of an old PyTorch on CUDA."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional

Resize = Callable[[Tensor, tuple[int, int]], Tensor]  # ([N, C, h, w], (H, W)) -> [N, C, H, W]


def nearest(x: Tensor, size: tuple[int, int]) -> Tensor:
    """Resize images by nearest neighbor: pixel j of the result is pixel floor(j h / H) of x.

    The gradient of pixel i is the sum over the pixels j that show it,
    ceil(i H / h) <= j < ceil((i + 1) H / h).

    Args:
        x: [N, C, h, w] images.
        size: Height and width (H, W) of the result.
    """
    return functional.interpolate(x, size)


def nearest_with_old_cuda_gradient(x: Tensor, size: tuple[int, int]) -> Tensor:
    """Resize as `nearest` does, with the gradient of PyTorch 1.3 to 1.5 on CUDA.

    These versions rounded the bounds of the backward window down instead of up: pixel i received
    the sum over floor(i H / h) <= j < floor((i + 1) H / h). If H is not a multiple of h, gradients
    reach the wrong pixels (PyTorch issue 38985, corrected by pull request 39055). The forward
    values are those of `nearest`.

    Args:
        x: [N, C, h, w] images.
        size: Height and width (H, W) of the result.
    """
    return cast(Tensor, _OldCudaGradient.apply(x, size))  # type: ignore[no-untyped-call]


class _OldCudaGradient(torch.autograd.Function):
    """Forward `nearest`; backward V^T G W for the windows V and W of height and width."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, size: tuple[int, int]) -> Tensor:
        ctx.small = tuple(x.shape[-2:])
        return nearest(x, size)

    @staticmethod
    def backward(ctx: Any, *cotangent: Tensor) -> tuple[Tensor, None]:
        (grad,) = cotangent
        rows, columns = (
            _old_windows(small, large).to(grad)
            for small, large in zip(ctx.small, grad.shape[-2:], strict=True)
        )
        return rows @ grad @ columns.T, None


def _old_windows(small: int, large: int) -> Tensor:
    """Return [small, large]: 1 where gradient j is added to pixel i.

    The kernel computed i * (large / small) in float32 and clipped both bounds to the image.
    """
    scale = torch.tensor(large, dtype=torch.float32) / small
    bounds = (torch.arange(small + 1) * scale).floor().long()
    first = bounds[:-1].clamp(max=large - 1)
    end = bounds[1:].clamp(max=large)
    j = torch.arange(large)
    return (first[:, None] <= j) & (j < end[:, None])
