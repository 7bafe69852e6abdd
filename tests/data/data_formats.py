"""Writes tiny files in the formats of the public datasets."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np


def random_bytes(*shape: int) -> np.ndarray:
    """The same pseudo-random bytes at every call."""
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def idx_bytes(array: np.ndarray) -> bytes:
    """An array of bytes as an IDX file."""
    header = bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.tobytes()


def write_mnist(
    folder: Path, x: np.ndarray, y: np.ndarray, stem: str = "t10k", zipped: bool = True
) -> Path:
    """Write the image and label files of one split; returns `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for part, array in ((f"{stem}-images-idx3-ubyte", x), (f"{stem}-labels-idx1-ubyte", y)):
        content = idx_bytes(array)
        (folder / f"{part}{'.gz' * zipped}").write_bytes(
            gzip.compress(content) if zipped else content
        )
    return folder


def ppm_bytes(pixels: np.ndarray, comment: bytes = b"") -> bytes:
    """Pixels [H, W, 3] as a binary PPM file."""
    height, width, _ = pixels.shape
    return b"P6\n" + comment + f"{width} {height}\n255\n".encode() + pixels.tobytes()
