"""The 8x8 handwritten digits bundled with scikit-learn: 1797 images, no download."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from saddlepoint.data.order import fixed_order
from saddlepoint.data.record import Data, Split, from_arrays

TEST_SIZE = 500


def load_digits(roots: Sequence[Path], split: Split, n: int | None) -> Data:  # noqa: ARG001
    """Load 1297 train or 500 test images [1, 8, 8]; pixels are multiples of 1/16.

    scikit-learn defines no split, so this function defines one. It puts the examples into a fixed
    order, groups them by class, and takes 500 at even distances for the test set. Each class is
    therefore represented proportionally, to within one example. Both splits keep the fixed order.

    Args:
        roots: Not used; the images come from scikit-learn.
        split: "train" or "test".
        n: Number of examples from the start; None loads all.
    """
    # Imported here because importing scikit-learn is slow.
    from sklearn.datasets import load_digits as bundled

    images, y = bundled(return_X_y=True)
    rows = np.array(fixed_order(len(y)))
    by_class = np.argsort(y[rows], kind="stable")  # positions in the fixed order
    test_positions = by_class[np.arange(TEST_SIZE) * len(rows) // TEST_SIZE]
    in_test = np.isin(np.arange(len(rows)), test_positions)
    chosen = rows[in_test if split == "test" else ~in_test][:n]
    x = images[chosen].reshape(-1, 1, 8, 8) / 16
    return from_arrays("digits", x, y[chosen], [str(digit) for digit in range(10)])
