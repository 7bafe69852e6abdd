"""Street View House Numbers (SVHN), cropped digits: `train_32x32.mat` and `test_32x32.mat`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from saddlepoint.data.files import find_folder, reject_web_page
from saddlepoint.data.mat import MatError, read_arrays
from saddlepoint.data.record import Array, Data, DataError, Split, from_arrays


def load_svhn(roots: Sequence[Path], split: Split, n: int | None) -> Data:
    """Load SVHN: 73257 train and 26032 test images [3, 32, 32], in file order.

    The label 10 in the file is the digit 0.

    Args:
        roots: Folders to search.
        split: "train" or "test".
        n: Number of examples from the start; None loads all.

    Raises:
        DataError: The file is missing or damaged.
    """
    file = f"{split}_32x32.mat"
    path = find_folder("svhn", roots, ("svhn", "SVHN"), (file,)) / file
    x, y = _read(path)
    images = np.transpose(x[..., :n], (3, 2, 0, 1))  # [H, W, C, N] -> [N, C, H, W]
    return from_arrays("svhn", images, y[:n] % 10, [str(digit) for digit in range(10)])


def _read(path: Path) -> tuple[Array, Array]:
    reject_web_page(path)
    try:
        content = read_arrays(path.read_bytes())
    except (OSError, MatError) as error:
        raise DataError(
            f"{path} is not a whole .mat file ({error}). Delete it and pull svhn again."
        ) from error
    if "X" not in content or "y" not in content:
        raise DataError(f"{path}: expected the variables X and y, found {sorted(content)}.")
    x = content["X"]
    y = content["y"].reshape(-1)
    if x.dtype != np.uint8 or x.ndim != 4 or x.shape[2] != 3 or x.shape[3] != len(y) or not len(y):
        raise DataError(
            f"{path}: expected X uint8 [32, 32, 3, N] and y [N, 1], found {x.dtype} {x.shape} and "
            f"{y.shape}."
        )
    if y.min() < 1 or y.max() > 10:
        raise DataError(
            f"{path}: expected labels 1..10 (10 is the digit 0), found {y.min()}..{y.max()}."
        )
    return x, y
