"""MNIST and Fashion-MNIST in the IDX format: a magic number, the shape, then bytes."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from saddlepoint.data.files import find_folder, read_bytes
from saddlepoint.data.record import Array, Data, DataError, Split, from_arrays
from saddlepoint.phrases import count, whole

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
_LONGEST_HEADER = 4 + 4 * 255  # bytes


def load_mnist(roots: Sequence[Path], split: Split, n: int | None) -> Data:
    """Load MNIST: 60000 train and 10000 test images [1, 28, 28], in file order.

    The four files, plain or .gz, are in `mnist/` or `MNIST/raw/`.

    Args:
        roots: Folders to search.
        split: "train" or "test".
        n: Number of examples from the start; None loads all.

    Raises:
        DataError: A file is missing or damaged.
    """
    return _load(
        "mnist", ("mnist", "MNIST/raw"), [str(digit) for digit in range(10)], roots, split, n
    )


def load_fashion_mnist(roots: Sequence[Path], split: Split, n: int | None) -> Data:
    """Load Fashion-MNIST: 60000 train and 10000 test images [1, 28, 28], in file order.

    The files are in `fashion-mnist/` or `FashionMNIST/raw/`. Otherwise the same as `load_mnist`.
    """
    return _load("fashion-mnist", ("fashion-mnist", "FashionMNIST/raw"), _FASHION, roots, split, n)


def read_idx(path: Path) -> Array:
    """Read an IDX file of unsigned bytes, plain or .gz.

    The format is: two zero bytes, the type (8: unsigned byte), the number of dimensions, each size
    as a big-endian 32-bit integer, the values.

    Raises:
        DataError: The file is not in this format or is truncated.
    """
    head = read_bytes(path, _LONGEST_HEADER)
    if len(head) < 4 or head[:3] != bytes((0, 0, _UNSIGNED_BYTE)):
        raise DataError(
            f"{path} is not an IDX file of bytes: it should begin with 00 00 08, found "
            f"{head[:4].hex(' ') or 'an empty file'}. Download the file again."
        )
    start = 4 + 4 * head[3]
    if len(head) < start:
        raise DataError(
            f"{path} ends inside its header. The file is truncated: delete it and pull it again."
        )
    shape = struct.unpack(f">{head[3]}I", head[4:start])
    declared = math.prod(shape)
    # One byte more, so that further content is noticed; it is not unpacked.
    content = read_bytes(path, start + declared + 1)
    found = len(content) - start
    if found != declared:
        if found > declared and path.suffix != ".gz":
            found = path.stat().st_size - start
        more = "more" if found > declared and path.suffix == ".gz" else whole(found)
        raise DataError(
            f"{path} declares {list(shape)} = {count(declared, 'byte')} but contains {more}. The "
            "file is damaged or truncated: delete it and pull it again."
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
            f"{name}: expected images [N, H, W] and labels [N] in {folder}, found {x.shape} and "
            f"{y.shape}."
        )
    if len(x) != len(y):
        raise DataError(
            f"{name}: {folder} has {count(len(x), 'image')} and {count(len(y), 'label')}; the "
            "files do not belong to the same dataset."
        )
    # Select the first n while the pixels are still bytes, to save memory.
    return from_arrays(name, x[:n, None], y[:n], classes)


def _plain_or_gz(name: str, folder: Path, stem: str) -> Path:
    for path in (folder / stem, folder / f"{stem}.gz"):
        if path.exists():
            return path
    raise DataError(
        f"{name}: {folder} has no {stem} or {stem}.gz, although other files of the dataset are "
        f"present. Run `saddlepoint data pull {name}`."
    )
