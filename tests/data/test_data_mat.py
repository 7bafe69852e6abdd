"""The reader of MATLAB files returns the arrays that SciPy writes."""

from __future__ import annotations

import io

import numpy as np
import pytest
from scipy.io import savemat

from saddlepoint.data.mat import MatError, read_arrays

NUMBERS = np.random.default_rng(0).normal(size=(4, 3, 2))


def written(compressed: bool, **arrays) -> bytes:
    file = io.BytesIO()
    savemat(file, arrays, do_compression=compressed)
    return file.getvalue()


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("kind", ["u1", "i2", "i4", "i8", "f4", "f8"])
def test_arrays_are_those_that_were_written(compressed, kind):
    x = (50 + 10 * NUMBERS).astype(kind)
    found = read_arrays(written(compressed, X=x, y=np.array([[1], [2]]), name="text", c=1j * x))
    assert sorted(found) == ["X", "y"]  # text and complex numbers are left out
    np.testing.assert_array_equal(found["X"], x)
    assert found["X"].dtype == x.dtype
    np.testing.assert_array_equal(found["y"], [[1], [2]])


@pytest.mark.parametrize("compressed", [False, True])
def test_every_shortened_file_is_an_error_or_has_fewer_arrays(compressed):
    whole = written(compressed, X=NUMBERS, y=NUMBERS)
    complete = 0
    for size in range(len(whole)):
        try:
            complete += len(read_arrays(whole[:size])) == 2
        except MatError:
            continue
    assert complete <= 8  # without a part of the checksum or of the padding
