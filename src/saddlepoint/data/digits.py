"""The 8x8 handwritten digits that come with scikit-learn: 1797 images, no download."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from saddlepoint.data.order import fixed_order
from saddlepoint.data.record import Data, Split, from_arrays

TEST_SIZE = 500


def load_digits(roots: Sequence[Path], split: Split, n: int | None) -> Data:  # noqa: ARG001
    """1297 train and 500 test images [1, 8, 8]; a pixel is one of 0/16 .. 16/16.

    Nothing is read from `roots`. The split is ours, as scikit-learn has none: examples in a fixed order, grouped by
    class, and 500 of them taken at even distances, so that every class has its share to within one example. Both parts
    keep the fixed order.
    """
    from sklearn.datasets import load_digits as bundled  # only here: importing scikit-learn is slow

    images, y = bundled(return_X_y=True)
    rows = np.array(fixed_order(len(y)))
    by_class = np.argsort(y[rows], kind="stable")  # positions in the fixed order
    tested = np.isin(np.arange(len(rows)), by_class[np.arange(TEST_SIZE) * len(rows) // TEST_SIZE])
    chosen = rows[tested if split == "test" else ~tested][:n]
    x = images[chosen].reshape(-1, 1, 8, 8) / 16
    return from_arrays("digits", x, y[chosen], [str(digit) for digit in range(10)])
