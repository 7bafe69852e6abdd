"""Writes tiny files in the formats of the public datasets."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np


def random_bytes(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def idx_bytes(array: np.ndarray) -> bytes:
    return (
        bytes((0, 0, 8, array.ndim))
        + struct.pack(f">{array.ndim}I", *array.shape)
        + array.tobytes()
    )


def write_mnist(
    folder: Path, x: np.ndarray, y: np.ndarray, stem: str = "t10k", zipped: bool = True
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for part, array in ((f"{stem}-images-idx3-ubyte", x), (f"{stem}-labels-idx1-ubyte", y)):
        content = idx_bytes(array)
        (folder / f"{part}{'.gz' * zipped}").write_bytes(
            gzip.compress(content) if zipped else content
        )
    return folder


def ppm_bytes(pixels: np.ndarray, comment: bytes = b"") -> bytes:
    height, width, _ = pixels.shape
    return b"P6\n" + comment + f"{width} {height}\n255\n".encode() + pixels.tobytes()
