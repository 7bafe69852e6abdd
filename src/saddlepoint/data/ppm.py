"""Binary portable pixmaps (PPM, `P6`), the image format of GTSRB."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from saddlepoint.data.files import read_bytes
from saddlepoint.data.record import Array, DataError
from saddlepoint.phrases import count

# Magic number, width, height, maximum value. White space and comments separate them; exactly one
# white-space byte follows them.
_GAP = rb"(?:\s|#[^\n]*\n)+"
_HEADER = re.compile(rb"P6" + _GAP + rb"(\d+)" + _GAP + rb"(\d+)" + _GAP + rb"(\d+)\s")


def read_ppm(path: Path) -> Array:
    """Read the pixels of a P6 file, uint8 [H, W, 3].

    Raises:
        DataError: The file is not a P6 file with one byte per value, or is truncated.
    """
    content = read_bytes(path)
    header = _HEADER.match(content)
    if header is None:
        raise DataError(
            f"{path} is not a binary PPM image: it should begin with P6 and its size, found "
            f"{content[:8]!r}."
        )
    width, height, maximum = (int(number) for number in header.groups())
    if maximum != 255:
        raise DataError(
            f"{path}: expected one byte per value (maximum value 255), found maximum value "
            f"{maximum}."
        )
    pixels = content[header.end() :]
    if len(pixels) != width * height * 3 or not pixels:
        raise DataError(
            f"{path} declares {width} x {height} pixels = {count(width * height * 3, 'byte')} but "
            f"contains {len(pixels)}. The file is damaged or truncated: download it again."
        )
    return np.frombuffer(pixels, np.uint8).reshape(height, width, 3)
