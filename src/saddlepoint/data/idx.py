"""MNIST and Fashion-MNIST in the IDX format: a magic number, the sizes, then bytes."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from saddlepoint.data.files import find_folder, read_bytes
from saddlepoint.data.record import Array, Data, DataError, Split, from_arrays

_FASHION = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
_UNSIGNED_BYTE = 0x08


def load_mnist(roots: Sequence[Path], split: Split, n: int | None) -> Data:
    """60000 train and 10000 test digits [1, 28, 28]; the four files, plain or .gz, in `mnist/` or `MNIST/raw/`."""
    return _load(
        "mnist", ("mnist", "MNIST/raw"), [str(digit) for digit in range(10)], roots, split, n
    )


def load_fashion_mnist(roots: Sequence[Path], split: Split, n: int | None) -> Data:
    """60000 train and 10000 test garments [1, 28, 28]; as MNIST, in `fashion-mnist/` or `FashionMNIST/raw/`."""
    return _load("fashion-mnist", ("fashion-mnist", "FashionMNIST/raw"), _FASHION, roots, split, n)


def read_idx(path: Path) -> Array:
    """The array of unsigned bytes in an IDX file, plain or .gz.

    Two zero bytes, the type (8: unsigned byte), the number of dimensions, each size as a big-endian 32-bit number, the
    values.
    """
    content = read_bytes(path)
    if len(content) < 4 or content[:3] != bytes((0, 0, _UNSIGNED_BYTE)):
        raise DataError(
            f"{path} is not an IDX file of bytes: it should begin with 00 00 08, found "
            f"{content[:4].hex(' ') or 'nothing'}. Get the file again."
        )
    start = 4 + 4 * content[3]
    if len(content) < start:
        raise DataError(
            f"{path} ends inside its header. It was cut short: delete it and pull it again."
        )
    shape = struct.unpack(f">{content[3]}I", content[4:start])
    if len(content) - start != math.prod(shape):
        raise DataError(
            f"{path} declares {list(shape)} = {math.prod(shape)} bytes and holds {len(content) - start}. It is "
            "damaged or cut short: delete it and pull it again."
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def _load(
    name: str,
    folders: Sequence[str],
    classes: Sequence[str],
    roots: Sequence[Path],
    split: Split,
    n: int | None,
) -> Data:
    stem = "train" if split == "train" else "t10k"
    images = f"{stem}-images-idx3-ubyte"
    labels = f"{stem}-labels-idx1-ubyte"
    folder = find_folder(name, roots, folders, (images, f"{images}.gz"))
    x = read_idx(_plain_or_gz(name, folder, images))
    y = read_idx(_plain_or_gz(name, folder, labels))
    if x.ndim != 3 or y.ndim != 1:
        raise DataError(
            f"{name}: expected images [N, H, W] and labels [N] in {folder}, found {x.shape} and {y.shape}."
        )
    if len(x) != len(y):
        raise DataError(
            f"{name}: {folder} has {len(x)} images and {len(y)} labels; the files are not of one set."
        )
    return from_arrays(name, x[:n, None], y[:n], classes)  # cut while it is still bytes


def _plain_or_gz(name: str, folder: Path, stem: str) -> Path:
    for path in (folder / stem, folder / f"{stem}.gz"):
        if path.exists():
            return path
    raise DataError(
        f"{name}: {folder} has no {stem} or {stem}.gz beside the other files. Run `saddlepoint data pull {name}`."
    )
