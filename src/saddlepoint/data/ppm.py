"""Binary portable pixmaps (PPM, `P6`): the images of GTSRB."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from saddlepoint.data.files import read_bytes
from saddlepoint.data.record import Array, DataError

# Magic, width, height, largest value; between them white space and comments, after them exactly one white-space byte.
_GAP = rb"(?:\s|#[^\n]*\n)+"
_HEADER = re.compile(rb"P6" + _GAP + rb"(\d+)" + _GAP + rb"(\d+)" + _GAP + rb"(\d+)\s")


def read_ppm(path: Path) -> Array:
    """The pixels of a P6 file, uint8 [H, W, 3]."""
    content = read_bytes(path)
    header = _HEADER.match(content)
    if header is None:
        raise DataError(
            f"{path} is not a binary PPM image: it should begin with P6 and its size, found {content[:8]!r}."
        )
    width, height, largest = (int(number) for number in header.groups())
    if largest != 255:
        raise DataError(
            f"{path}: expected one byte per value (largest value 255), found largest value {largest}."
        )
    pixels = content[header.end() :]
    if len(pixels) != width * height * 3 or not pixels:
        raise DataError(
            f"{path} declares {width} x {height} pixels = {width * height * 3} bytes and holds {len(pixels)}. It is "
            "damaged or cut short: get it again."
        )
    return np.frombuffer(pixels, np.uint8).reshape(height, width, 3)
