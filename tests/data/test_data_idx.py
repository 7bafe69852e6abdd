"""MNIST and Fashion-MNIST: IDX files; damaged ones are rejected."""

from __future__ import annotations

import gzip

import numpy as np
import pytest
from tests.data.data_formats import idx_bytes, random_bytes, write_mnist

from saddlepoint.data import DataError, load_data
from saddlepoint.data.idx import read_idx

X = random_bytes(5, 28, 28)
Y = np.array([3, 1, 4, 1, 5], np.uint8)


@pytest.mark.parametrize("zipped", [True, False], ids=["gz", "plain"])
@pytest.mark.parametrize(
    ("name", "folder"),
    [("mnist", "mnist"), ("mnist", "MNIST/raw"), ("fashion-mnist", "fashion-mnist")],
)
def test_images_are_read_as_written(tmp_path, name, folder, zipped):
    write_mnist(tmp_path / folder, X, Y, zipped=zipped)
    data = load_data(name, root=tmp_path)
    assert (data.x * 255).round().byte().numpy().squeeze(1).tolist() == X.tolist()
    assert data.y.tolist() == Y.tolist()
    assert len(data.classes) == 10


def test_each_split_reads_its_own_files(tmp_path):
    write_mnist(tmp_path / "mnist", X, Y, stem="train")
    write_mnist(tmp_path / "mnist", X[:2], Y[:2], stem="t10k")
    assert len(load_data("mnist", root=tmp_path, split="train")) == 5
    assert len(load_data("mnist", root=tmp_path)) == 2


def test_the_root_may_be_the_dataset_folder_if_its_name_matches(tmp_path):
    write_mnist(tmp_path / "mnist", X, Y)
    assert len(load_data("mnist", root=tmp_path / "mnist")) == 5
    with pytest.raises(DataError, match="fashion-mnist: looked for"):
        load_data("fashion-mnist", root=tmp_path / "mnist")


def test_the_folder_of_debian_packages_is_searched_without_a_root(tmp_path, monkeypatch):
    monkeypatch.setattr("saddlepoint.data.files.SYSTEM_FOLDER", tmp_path / "datasets")
    write_mnist(tmp_path / "datasets" / "fashion-mnist", X, Y)
    assert load_data("fashion-mnist").classes[9] == "Ankle boot"
    with pytest.raises(DataError, match="looked for"):
        load_data("fashion-mnist", root=tmp_path / "elsewhere")


@pytest.mark.parametrize("kept", [0, 3, 10, 16, 500], ids=lambda kept: f"{kept} bytes")
def test_a_truncated_file_is_rejected(tmp_path, kept):
    path = tmp_path / "images"
    path.write_bytes(idx_bytes(X)[:kept])
    with pytest.raises(DataError, match=r"declares|not an IDX file|ends inside its header"):
        read_idx(path)


def test_a_file_with_extra_bytes_is_rejected(tmp_path):
    path = tmp_path / "images"
    path.write_bytes(idx_bytes(X) + b"\0")
    with pytest.raises(DataError, match=r"declares \[5, 28, 28\] = 3920 bytes but contains 3921"):
        read_idx(path)


@pytest.mark.parametrize("damage", ["cut", "flipped", "not gzip"])
def test_a_damaged_gzip_is_rejected(tmp_path, damage):
    whole = gzip.compress(idx_bytes(X))
    middle = len(whole) // 2
    flipped = whole[:middle] + bytes((whole[middle] ^ 255,)) + whole[middle + 1 :]
    path = tmp_path / "images.gz"
    path.write_bytes({"cut": whole[:middle], "flipped": flipped, "not gzip": b"data"}[damage])
    with pytest.raises(DataError, match="not a whole gzip file"):
        read_idx(path)


@pytest.mark.parametrize(
    "page", [b"<!DOCTYPE html><p>moved", b"\n <HTML>", b"\xef\xbb\xbf<?xml version='1.0'?><Error/>"]
)
def test_the_error_identifies_a_web_page_in_place_of_data(tmp_path, page):
    path = tmp_path / "images.gz"
    path.write_bytes(page)
    with pytest.raises(DataError, match="expected data, found a web page"):
        read_idx(path)


def test_images_and_labels_of_different_length_are_rejected(tmp_path):
    write_mnist(tmp_path / "mnist", X, Y[:4])
    with pytest.raises(DataError, match="5 images and 4 labels"):
        load_data("mnist", root=tmp_path)


def test_labels_in_place_of_images_are_rejected(tmp_path):
    write_mnist(tmp_path / "mnist", Y, Y)
    with pytest.raises(DataError, match=r"expected images \[N, H, W\]"):
        load_data("mnist", root=tmp_path)


def test_a_label_beyond_the_classes_is_rejected(tmp_path):
    write_mnist(tmp_path / "mnist", X, Y + 5)
    with pytest.raises(DataError, match=r"labels must be in 0\.\.9"):
        load_data("mnist", root=tmp_path)


def test_the_error_names_a_missing_label_file(tmp_path):
    folder = write_mnist(tmp_path / "mnist", X, Y)
    (folder / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(DataError, match="has no t10k-labels-idx1-ubyte"):
        load_data("mnist", root=tmp_path)
