"""Users' own arrays: read in every layout, or rejected with advice."""

from __future__ import annotations

import numpy as np
import pytest
from tests.data.data_formats import random_bytes

from saddlepoint.data import DataError, load_data

Y = np.array([0, 1, 2, 1])


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((4, 3, 8, 6), (4, 3, 8, 6)),
        ((4, 8, 6, 3), (4, 3, 8, 6)),
        ((4, 1, 8, 6), (4, 1, 8, 6)),
        ((4, 8, 6, 1), (4, 1, 8, 6)),
        ((4, 8, 6), (4, 1, 8, 6)),
    ],
)
def test_channels_come_first_for_every_layout(tmp_path, shape, expected):
    x = random_bytes(*shape)
    np.savez(tmp_path / "my.npz", x=x, y=Y)
    data = load_data(str(tmp_path / "my.npz"))
    assert data.x.shape == expected
    same = x if shape == expected else np.moveaxis(x.reshape(4, 8, 6, -1), 3, 1)
    assert (data.x * 255).round().byte().tolist() == same.tolist()
    assert data.name == "my"
    assert data.classes == ("0", "1", "2")


@pytest.mark.parametrize("shape", [(4, 3, 8, 3), (4, 1, 1, 3), (4, 5, 8, 8)])
def test_an_ambiguous_layout_is_rejected_unless_the_file_specifies_it(tmp_path, shape):
    np.savez(tmp_path / "my.npz", x=random_bytes(*shape), y=Y)
    with pytest.raises(DataError, match=r"ambiguous whether .* NCHW or NHWC.*layout='NCHW'"):
        load_data(str(tmp_path / "my.npz"))
    np.savez(tmp_path / "my.npz", x=random_bytes(*shape), y=Y, layout="NHWC")
    n, h, w, c = shape
    assert load_data(str(tmp_path / "my.npz")).x.shape == (n, c, h, w)


def test_floats_and_class_names_are_kept(tmp_path):
    np.savez(
        tmp_path / "my.npz",
        x=np.full((4, 1, 2, 2), 0.25),
        y=Y,
        classes=["cat", "dog", "eel", "fox"],
    )
    data = load_data(str(tmp_path / "my.npz"))
    assert data.x.unique().tolist() == [0.25]
    assert data.classes[3] == "fox"


def test_one_file_may_contain_both_splits(tmp_path):
    x = random_bytes(4, 8, 8)
    np.savez(tmp_path / "my.npz", x_train=x, y_train=Y, x_test=x[:2], y_test=Y[:2])
    assert len(load_data(str(tmp_path / "my.npz"), split="train")) == 4
    assert len(load_data(str(tmp_path / "my.npz"))) == 2


def test_a_folder_contains_one_file_per_split(tmp_path):
    np.savez(tmp_path / "train.npz", x=random_bytes(4, 8, 8), y=Y)
    np.savez(tmp_path / "test.npz", x=random_bytes(2, 8, 8), y=Y[:2])
    assert len(load_data(str(tmp_path), split="train")) == 4
    assert len(load_data(str(tmp_path))) == 2


def test_a_file_is_also_found_below_the_root(tmp_path):
    np.savez(tmp_path / "my.npz", x=random_bytes(4, 8, 8), y=Y)
    assert len(load_data("my.npz", root=tmp_path)) == 4


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": random_bytes(4, 8, 8)}, "expected arrays x and y .* found x"),
        ({"images": Y}, "found images"),
        ({"x": random_bytes(4, 8), "y": Y}, r"found \[4, 8\]"),
        ({"x": random_bytes(3, 8, 8), "y": Y}, "3 images and y has 4 labels"),
        ({"x": random_bytes(4, 8, 8).astype(float), "y": Y}, "Divide by 255"),
        ({"x": random_bytes(4, 8, 8).astype(int), "y": Y}, "must be uint8"),
        ({"x": np.full((4, 8, 8), np.nan), "y": Y}, "not finite"),
        ({"x": random_bytes(4, 8, 8), "y": Y / 2}, "labels must be integers"),
        ({"x": random_bytes(4, 8, 8), "y": Y - 1}, "labels must start at 0, but they start at -1"),
        ({"x": random_bytes(4, 1, 8, 8), "y": Y, "layout": "CHWN"}, "layout must be"),
        ({"x": random_bytes(4, 8, 8), "y": np.array([{}] * 4)}, "an array has pickled objects"),
    ],
)
def test_invalid_arrays_are_rejected(tmp_path, arrays, message):
    np.savez(tmp_path / "my.npz", **arrays)
    with pytest.raises(DataError, match=message):
        load_data(str(tmp_path / "my.npz"))


@pytest.mark.parametrize("damage", ["cut", "flipped", "page", "empty", "single array"])
def test_a_damaged_file_is_rejected(tmp_path, damage):
    path = tmp_path / "my.npz"
    np.savez(path, x=random_bytes(4, 8, 8), y=Y)
    whole = path.read_bytes()
    content = {
        "cut": whole[:200],
        "flipped": whole[:250] + bytes((whole[250] ^ 255,)) + whole[251:],
        "page": b"<html>",
        "empty": b"",
        "single array": b"",
    }
    path.write_bytes(content[damage])
    if damage == "single array":
        with path.open("wb") as file:
            np.save(file, Y)
    with pytest.raises(DataError, match=r"not a whole \.npz file|web page|single array"):
        load_data(str(path))


def test_a_text_file_is_no_archive_and_nothing_unsafe_is_advised(tmp_path):
    (tmp_path / "my.npz").write_text("hello\n")
    with pytest.raises(DataError, match=r"it is no \.npz archive") as found:
        load_data(str(tmp_path / "my.npz"))
    assert "pickle" not in str(found.value)


def test_the_error_names_a_missing_file(tmp_path):
    with pytest.raises(DataError, match=r"no file .*absent\.npz"):
        load_data(str(tmp_path / "absent.npz"))
