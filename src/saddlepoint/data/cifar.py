"""CIFAR-10 in its binary layout or its Python layout.

The binary layout is the folder `cifar-10-batches-bin`, the Python layout `cifar-10-batches-py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from saddlepoint.data.files import find_folder, read_bytes
from saddlepoint.data.record import Array, Data, DataError, Split, from_arrays
from saddlepoint.data.unpickle import unpickle_arrays
from saddlepoint.phrases import count

_CLASSES = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)
_FOLDERS = ("cifar-10-batches-bin", "cifar-10-batches-py")
_PIXELS = 3 * 32 * 32
# The files do not store their number of rows. This constant detects a file truncated after a row.
ROWS_PER_FILE = 10_000


def load_cifar10(roots: Sequence[Path], split: Split, n: int | None) -> Data:
    """Load CIFAR-10: 50000 train and 10000 test images [3, 32, 32], in file order.

    Args:
        roots: Folders to search.
        split: "train" or "test".
        n: Number of examples from the start; None loads all. Only the files needed are read.

    Raises:
        DataError: A file is missing or damaged.
    """
    stems = [f"data_batch_{i}" for i in range(1, 6)] if split == "train" else ["test_batch"]
    places = [*_FOLDERS, *(f"cifar10/{folder}" for folder in _FOLDERS)]
    folder = find_folder("cifar10", roots, places, (f"{stems[0]}.bin", stems[0]))
    binary = (folder / f"{stems[0]}.bin").exists()
    read: Callable[[Path], tuple[Array, Array]] = _read_binary if binary else _read_pickle
    files = [folder / (f"{stem}.bin" if binary else stem) for stem in stems]
    needed = files if n is None else files[: -(-n // ROWS_PER_FILE)]
    parts = [read(_require_file(path)) for path in needed]
    x, y = (np.concatenate(column)[:n] for column in zip(*parts, strict=True))
    return from_arrays("cifar10", x.reshape(-1, 3, 32, 32), y, _CLASSES)


def _read_binary(path: Path) -> tuple[Array, Array]:
    """Read rows of one label byte and 3072 pixel bytes.

    The pixels are the red, green and blue planes, each in row-major order.
    """
    content = read_bytes(path)
    expected = ROWS_PER_FILE * (1 + _PIXELS)
    if len(content) != expected:
        raise DataError(
            f"{path} should be {count(expected, 'byte')} ({count(ROWS_PER_FILE, 'row')} of "
            f"{1 + _PIXELS}), found {len(content)}. The file is damaged or truncated: delete it "
            "and pull cifar10 again."
        )
    rows = np.frombuffer(content, np.uint8).reshape(ROWS_PER_FILE, 1 + _PIXELS)
    return rows[:, 1:], rows[:, 0]


def _read_pickle(path: Path) -> tuple[Array, Array]:
    """Read a pickled dictionary with `data` (uint8 [rows, 3072]) and a list of `labels`."""
    batch = unpickle_arrays(read_bytes(path), str(path))
    x = batch.get("data")
    y = batch.get("labels")
    if not isinstance(x, np.ndarray) or x.dtype != np.uint8 or x.shape != (ROWS_PER_FILE, _PIXELS):
        found = f"{x.dtype} {x.shape}" if isinstance(x, np.ndarray) else f"keys {sorted(batch)}"
        raise DataError(
            f"{path}: expected `data` of uint8 ({ROWS_PER_FILE}, {_PIXELS}), found {found}. "
            "Download the file again."
        )
    if (
        not isinstance(y, list)
        or len(y) != ROWS_PER_FILE
        or not all(type(label) is int for label in y)
    ):
        raise DataError(
            f"{path}: expected `labels`, a list of {count(ROWS_PER_FILE, 'integer')}. "
            "Download the file again."
        )
    return x, np.array(y, dtype=np.int64)


def _require_file(path: Path) -> Path:
    if not path.exists():
        raise DataError(
            f"cifar10: {path} is missing, although other files of the dataset are present. "
            "Run `saddlepoint data pull cifar10`."
        )
    return path
