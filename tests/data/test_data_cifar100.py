"""CIFAR-100: both layouts and both kinds of labels."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
from tests.data.data_formats import random_bytes

from saddlepoint.data import DataError, load_data
from saddlepoint.data.cifar100 import COARSE, COARSE_OF, FINE

X = random_bytes(6, 3072)
NAMES = {"train": ("apple", "baby", "tractor", "worm"), "test": ("whale", "aquarium_fish")}
FAMILIES = {
    "train": ("fruit_and_vegetables", "people", "vehicles_2", "non-insect_invertebrates"),
    "test": ("aquatic_mammals", "fish"),
}
ROWS = {"train": slice(0, 4), "test": slice(4, 6)}


@pytest.fixture(autouse=True)
def _few_rows(monkeypatch):
    monkeypatch.setattr("saddlepoint.data.cifar100.ROWS", {"train": 4, "test": 2})


def numbers(split):
    return [COARSE.index(name) for name in FAMILIES[split]], [
        FINE.index(name) for name in NAMES[split]
    ]


def write_binary(root: Path) -> Path:
    folder = root / "cifar-100-binary"
    folder.mkdir(parents=True)
    for split in ("train", "test"):
        labels = np.array(numbers(split), np.uint8).T
        (folder / f"{split}.bin").write_bytes(
            np.concatenate([labels, X[ROWS[split]]], axis=1).tobytes()
        )
    return folder


def write_pickles(root: Path) -> Path:
    folder = root / "cifar-100-python"
    folder.mkdir(parents=True)
    for split in ("train", "test"):
        coarse, fine = numbers(split)
        batch = {
            "filenames": ["a.png"],
            "fine_labels": fine,
            "coarse_labels": coarse,
            "data": X[ROWS[split]],
        }
        (folder / split).write_bytes(pickle.dumps(batch, protocol=2))
    return folder


def test_there_are_a_hundred_classes_in_twenty_families_of_five():
    assert (len(FINE), len(COARSE)) == (100, 20)
    assert list(FINE) == sorted(set(FINE))
    assert list(COARSE) == sorted(COARSE)
    assert [COARSE_OF.count(k) for k in range(20)] == [5] * 20
    # As published: the first five fine classes, and the coarse ones of these.
    assert FINE[:5] == ("apple", "aquarium_fish", "baby", "bear", "beaver")
    assert COARSE_OF[:5] == (4, 1, 14, 8, 0)


@pytest.mark.parametrize("split", ["train", "test"])
def test_both_layouts_hold_the_same_images_and_labels(tmp_path, split):
    write_binary(tmp_path / "a")
    write_pickles(tmp_path / "b" / "cifar100")
    for name, told in (("cifar100", NAMES), ("cifar100-coarse", FAMILIES)):
        binary, pickled = (load_data(name, root=tmp_path / folder, split=split) for folder in "ab")
        assert binary.digest() == pickled.digest()
        assert tuple(binary.classes[k] for k in binary.y) == told[split]
        assert (binary.x[1] * 255).round().flatten().tolist() == X[ROWS[split]][1].tolist()
        assert binary.x.shape[1:] == (3, 32, 32)


def test_n_takes_the_first(tmp_path):
    write_binary(tmp_path)
    assert (
        load_data("cifar100", root=tmp_path, split="train", n=3).y.tolist()
        == numbers("train")[1][:3]
    )


@pytest.mark.parametrize("change", [-1, -3074, 1])
def test_a_binary_file_of_another_size_is_refused(tmp_path, change):
    path = write_binary(tmp_path) / "test.bin"
    content = path.read_bytes()
    path.write_bytes(content[:change] if change < 0 else content + b"\0")
    with pytest.raises(DataError, match=r"should be 6148 bytes \(2 rows of 3074\)"):
        load_data("cifar100", root=tmp_path)


@pytest.mark.parametrize("labels", [(3, 0), (4, 100), (20, 0), (255, 255)])
def test_labels_that_do_not_belong_together_are_refused(tmp_path, labels):
    path = write_binary(tmp_path) / "test.bin"
    path.write_bytes(bytes(labels) + path.read_bytes()[2:])
    with pytest.raises(
        DataError, match=f"row 0 has fine label {labels[1]} and coarse label {labels[0]}"
    ):
        load_data("cifar100", root=tmp_path)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({"fine_labels": [0, 1]}, r"expected `data`.*found keys \['fine_labels'\]"),
        ({"data": X[:2], "fine_labels": [0, 1]}, "expected `coarse_labels`, a list of 2"),
        (
            {"data": X[:2], "coarse_labels": [4, 1], "fine_labels": [0, "fish"]},
            "expected `fine_labels`, a list of 2",
        ),
    ],
)
def test_a_pickle_of_something_else_is_refused(tmp_path, batch, message):
    (write_pickles(tmp_path) / "test").write_bytes(pickle.dumps(batch))
    with pytest.raises(DataError, match=message):
        load_data("cifar100", root=tmp_path)


def test_missing_files_of_the_coarse_labels_are_those_of_the_fine_ones(tmp_path):
    with pytest.raises(DataError, match="saddlepoint data pull cifar100`"):
        load_data("cifar100-coarse", root=tmp_path)
