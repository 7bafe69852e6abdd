"""Images as PNG data URIs. Written here in thirty lines, so that a report needs no imaging library."""

from __future__ import annotations

import base64
import struct
import zlib

import torch
from torch import Tensor, nn

_GRAY = 0
_RGB = 2  # color types of the PNG specification
_LARGEST_SIDE = 96  # pixels; more would not be seen in a gallery and make the page heavy


def drawable(images: Tensor) -> bool:
    """Is [N, ...] a batch of gray or color images [N, C, H, W]?"""
    return images.ndim == 4 and images.shape[1] in (1, 3)


def data_uri(image: Tensor) -> str:
    """[C, H, W] in [0, 1], C 1 or 3, as `data:image/png;base64,...` of at most 96 pixels a side."""
    return "data:image/png;base64," + base64.b64encode(png(shrunk(image))).decode("ascii")


def shrunk(image: Tensor) -> Tensor:
    """Means over blocks of pixels where a side is too long for a gallery."""
    factor = -(-max(image.shape[1:]) // _LARGEST_SIDE)
    return nn.functional.avg_pool2d(image[None], factor, ceil_mode=True)[0] if factor > 1 else image


def png(image: Tensor) -> bytes:
    """The file: signature, header, deflated rows, end. Values are rounded to 8 bits; each row begins with filter 0, none."""
    channels, height, width = image.shape
    bytes_ = (image.detach().cpu().float().clamp(0, 1) * 255).round().to(torch.uint8)
    rows = bytes_.permute(1, 2, 0).reshape(height, width * channels).numpy()
    header = struct.pack(">IIBBBBB", width, height, 8, _GRAY if channels == 1 else _RGB, 0, 0, 0)
    pixels = zlib.compress(b"".join(b"\0" + row.tobytes() for row in rows), 9)
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
