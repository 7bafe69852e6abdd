"""SVHN: MATLAB files in which label 10 is the digit 0."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.io import savemat
from tests.data.data_formats import random_bytes

from saddlepoint.data import DataError, load_data

X = random_bytes(32, 32, 3, 4)
Y = np.array([[10], [1], [9], [10]], np.uint8)


def write(root, **arrays):
    (root / "svhn").mkdir()
    savemat(root / "svhn" / "test_32x32.mat", arrays)
    return root / "svhn" / "test_32x32.mat"


def test_images_are_transposed_and_label_10_becomes_0(tmp_path):
    write(tmp_path, X=X, y=Y)
    data = load_data("svhn", root=tmp_path)
    assert data.y.tolist() == [0, 1, 9, 0]
    assert int((data.x[1, 2, 5, 7] * 255).round()) == X[5, 7, 2, 1]
    assert data.take(2).digest() == load_data("svhn", root=tmp_path, n=2).digest()


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"X": X}, r"expected the variables X and y, found \['X'\]"),
        ({"X": X, "y": Y[:3]}, "expected X uint8"),
        ({"X": X / 255, "y": Y}, "expected X uint8"),
        ({"X": X, "y": Y - 1}, r"expected labels 1\.\.10"),
    ],
)
def test_a_file_with_other_content_is_rejected(tmp_path, arrays, message):
    write(tmp_path, **arrays)
    with pytest.raises(DataError, match=message):
        load_data("svhn", root=tmp_path)


@pytest.mark.parametrize("kept", [0, 100, 200, 5000])
def test_a_truncated_file_is_rejected(tmp_path, kept):
    path = write(tmp_path, X=X, y=Y)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(DataError, match=r"not a whole \.mat file"):
        load_data("svhn", root=tmp_path)


def test_the_error_identifies_a_web_page(tmp_path):
    write(tmp_path, X=X, y=Y).write_text("<html>")
    with pytest.raises(DataError, match="web page"):
        load_data("svhn", root=tmp_path)
