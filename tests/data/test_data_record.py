"""Every `Data` is valid: one label per image, pixels in [0, 1], labels within the classes."""

from __future__ import annotations

import math
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
import torch

from saddlepoint.data import Data, DataError
from saddlepoint.data.order import fixed_order
from saddlepoint.data.record import from_arrays


def example(**changes: object) -> Data:
    fields = {
        "name": "toy",
        "x": torch.full((3, 1, 2, 2), 0.5),
        "y": torch.tensor([0, 1, 1]),
        "classes": ("cat", "dog"),
    }
    return Data(**(fields | changes))


def test_data_unpacks_into_images_and_labels():
    data = example()
    x, y = data
    assert x is data.x
    assert y is data.y
    assert len(data) == 3


def test_data_is_immutable():
    with pytest.raises(FrozenInstanceError):
        example().name = "other"


def test_repr_shows_sizes_not_pixels():
    assert repr(example()) == "Data('toy', x=[3, 1, 2, 2], 2 classes)"


def test_take_returns_the_first_examples():
    assert example().take(2).y.tolist() == [0, 1]


@pytest.mark.parametrize("n", [0, -1, 4])
def test_taking_too_many_or_no_examples_is_an_error(n):
    with pytest.raises(DataError, match="between 1 and 3"):
        example().take(n)


def test_batches_contain_all_rows_in_order():
    batches = list(example().batches(2))
    assert [len(y) for _, y in batches] == [2, 1]
    assert torch.cat([y for _, y in batches]).tolist() == [0, 1, 1]


def test_a_batch_size_of_zero_is_an_error():
    with pytest.raises(DataError, match="at least one example"):
        example().batches(0)


def test_digest_depends_only_on_pixels_labels_and_shape():
    same = example(name="other", classes=("a", "b"))
    strided = example(x=torch.full((3, 1, 2, 4), 0.5)[..., ::2])
    assert example().digest() == same.digest() == strided.digest()
    others = [
        example(x=torch.full((3, 1, 2, 2), 0.25)),
        example(y=torch.tensor([0, 1, 0])),
        example(x=torch.full((3, 2, 2, 1), 0.5)),
    ]
    assert len({data.digest() for data in (example(), *others)}) == 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"x": torch.zeros(3, 1, 2, 2, dtype=torch.float64)},
            r"x must be float32 \[N, C, H, W\], got float64",
        ),
        ({"x": torch.zeros(3, 4)}, r"got float32 \[3, 4\]"),
        ({"y": torch.tensor([0.0, 1.0, 1.0])}, r"y must be int64 \[N\], got float32"),
        ({"y": torch.tensor([0, 1])}, "3 images and y has 2 labels"),
        (
            {"x": torch.zeros(0, 1, 2, 2), "y": torch.zeros(0, dtype=torch.int64)},
            "at least one image",
        ),
        (
            {"x": torch.tensor([0.0, math.nan, 1.0]).view(3, 1, 1, 1)},
            "1 that are not finite. Repair or remove 1 image; the first is number 1",
        ),
        ({"x": torch.full((3, 1, 2, 2), math.inf)}, "12 that are not finite"),
        ({"x": torch.full((3, 1, 2, 2), 128.0)}, "found 128..128. Divide by 255"),
        ({"x": torch.full((3, 1, 2, 2), -0.5)}, r"found -0.5..-0.5. Pass \(x \+ 1\) / 2"),
        ({"x": torch.full((3, 1, 2, 2), -2.0)}, "They seem to be normalized"),
        ({"y": torch.tensor([0, 1, 2])}, r"labels must be in 0..1 \(2 classes\), found 0..2"),
        ({"y": torch.tensor([0, 1, -1])}, r"start at 0, but they start at -1 .*Pass y \+ 1"),
    ],
)
def test_the_error_describes_the_invalid_field(changes, message):
    with pytest.raises(DataError, match=message):
        example(**changes)


def test_bytes_are_divided_by_255():
    data = from_arrays(
        "toy", np.array([0, 51, 255, 0], np.uint8).reshape(1, 1, 2, 2), np.array([0]), ["a"]
    )
    # 51 / 255 = 1/5: one correctly rounded division gives the float32 nearest to it.
    assert data.x.flatten().tolist() == pytest.approx([0, 0.2, 1, 0], rel=2**-24)


def test_a_column_of_labels_is_accepted():
    assert from_arrays(
        "toy", np.zeros((2, 1, 1, 1)), np.array([[1], [0]]), ["a", "b"]
    ).y.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (
            np.zeros((1, 1, 1, 1), np.int64),
            np.array([0]),
            r"x must be uint8 \(0..255\) or float \(0..1\), got int64",
        ),
        (np.zeros((1, 1, 1, 1)), np.array([0.0]), "labels must be integers, got float64"),
        (np.zeros((1, 1, 1, 1)), np.array(["cat"]), "labels must be integers"),
    ],
)
def test_arrays_of_the_wrong_dtype_are_rejected(x, y, message):
    with pytest.raises(DataError, match=message):
        from_arrays("toy", x, y, ["a"])


def test_the_fixed_order_is_a_permutation_that_never_changes():
    assert sorted(fixed_order(1000)) == list(range(1000))
    assert fixed_order(5) == [4, 3, 0, 1, 2]
