"""Encode images as PNG data URIs, without an imaging library."""

from __future__ import annotations

import base64
import struct
import zlib

import torch
from torch import Tensor, nn

_GRAY = 0  # color types of the PNG specification
_RGB = 2
_LARGEST_SIDE = 96  # pixels; more are not visible in the gallery and make the page large


def drawable(images: Tensor) -> bool:
    """Return whether [N, ...] is a batch of gray or color images [N, C, H, W], C = 1 or 3."""
    return images.ndim == 4 and images.shape[1] in (1, 3)


def data_uri(image: Tensor) -> str:
    """Encode an image as `data:image/png;base64,...` with at most 96 pixels per side.

    Args:
        image: [C, H, W] with values in [0, 1], C = 1 or 3.
    """
    return "data:image/png;base64," + base64.b64encode(png(downsampled(image))).decode("ascii")


def downsampled(image: Tensor) -> Tensor:
    """Average blocks of pixels so that no side of [C, H, W] has more than 96 pixels."""
    factor = -(-max(image.shape[1:]) // _LARGEST_SIDE)
    return nn.functional.avg_pool2d(image[None], factor, ceil_mode=True)[0] if factor > 1 else image


def png(image: Tensor) -> bytes:
    """Encode an image as a PNG file: signature, header, compressed rows, end.

    Args:
        image: [C, H, W], C = 1 or 3. Values are clipped to [0, 1] and rounded to 8 bits.
    """
    channels, height, width = image.shape
    values = (image.detach().cpu().float().clamp(0, 1) * 255).round().to(torch.uint8)
    rows = values.permute(1, 2, 0).reshape(height, width * channels).numpy()
    header = struct.pack(">IIBBBBB", width, height, 8, _GRAY if channels == 1 else _RGB, 0, 0, 0)
    pixels = zlib.compress(b"".join(b"\0" + row.tobytes() for row in rows), 9)  # 0: no filter
    return (
        b"\x89PNG\r\n\x1a\n"
        + _chunk(b"IHDR", header)
        + _chunk(b"IDAT", pixels)
        + _chunk(b"IEND", b"")
    )


def _chunk(kind: bytes, content: bytes) -> bytes:
    return (
        struct.pack(">I", len(content))
        + kind
        + content
        + struct.pack(">I", zlib.crc32(kind + content))
    )
