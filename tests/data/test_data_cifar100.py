"""CIFAR-100: both layouts, fine and coarse labels."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
from tests.data.data_formats import random_bytes

from saddlepoint.data import DataError, load_data
from saddlepoint.data.cifar100 import COARSE, COARSE_OF, FINE

X = random_bytes(6, 3072)
FINE_NAMES = {"train": ("apple", "baby", "tractor", "worm"), "test": ("whale", "aquarium_fish")}
COARSE_NAMES = {
    "train": ("fruit_and_vegetables", "people", "vehicles_2", "non-insect_invertebrates"),
    "test": ("aquatic_mammals", "fish"),
}
ROWS = {"train": slice(0, 4), "test": slice(4, 6)}


@pytest.fixture(autouse=True)
def _few_rows(monkeypatch):
    monkeypatch.setattr("saddlepoint.data.cifar100.ROWS", {"train": 4, "test": 2})


def label_numbers(split):
    """The coarse and the fine labels of a split."""
    coarse = [COARSE.index(name) for name in COARSE_NAMES[split]]
    fine = [FINE.index(name) for name in FINE_NAMES[split]]
    return coarse, fine


def write_binary(root: Path) -> Path:
    folder = root / "cifar-100-binary"
    folder.mkdir(parents=True)
    for split in ("train", "test"):
        labels = np.array(label_numbers(split), np.uint8).T
        (folder / f"{split}.bin").write_bytes(
            np.concatenate([labels, X[ROWS[split]]], axis=1).tobytes()
        )
    return folder


def write_pickles(root: Path) -> Path:
    folder = root / "cifar-100-python"
    folder.mkdir(parents=True)
    for split in ("train", "test"):
        coarse, fine = label_numbers(split)
        batch = {
            "filenames": ["a.png"],
            "fine_labels": fine,
            "coarse_labels": coarse,
            "data": X[ROWS[split]],
        }
        (folder / split).write_bytes(pickle.dumps(batch, protocol=2))
    return folder


def test_there_are_100_fine_classes_five_in_each_of_20_coarse_classes():
    assert (len(FINE), len(COARSE)) == (100, 20)
    assert list(FINE) == sorted(set(FINE))
    assert list(COARSE) == sorted(COARSE)
    assert [COARSE_OF.count(k) for k in range(20)] == [5] * 20
    # The first five fine classes as published, and their coarse classes.
    assert FINE[:5] == ("apple", "aquarium_fish", "baby", "bear", "beaver")
    assert COARSE_OF[:5] == (4, 1, 14, 8, 0)


@pytest.mark.parametrize("split", ["train", "test"])
def test_both_layouts_contain_the_same_images_and_labels(tmp_path, split):
    write_binary(tmp_path / "a")
    write_pickles(tmp_path / "b" / "cifar100")
    for name, expected in (("cifar100", FINE_NAMES), ("cifar100-coarse", COARSE_NAMES)):
        binary, pickled = (load_data(name, root=tmp_path / folder, split=split) for folder in "ab")
        assert binary.digest() == pickled.digest()
        assert tuple(binary.classes[k] for k in binary.y) == expected[split]
        assert (binary.x[1] * 255).round().flatten().tolist() == X[ROWS[split]][1].tolist()
        assert binary.x.shape[1:] == (3, 32, 32)


def test_n_selects_the_first_examples(tmp_path):
    write_binary(tmp_path)
    _, fine = label_numbers("train")
    assert load_data("cifar100", root=tmp_path, split="train", n=3).y.tolist() == fine[:3]


@pytest.mark.parametrize("change", [-1, -3074, 1])
def test_a_binary_file_of_the_wrong_size_is_rejected(tmp_path, change):
    path = write_binary(tmp_path) / "test.bin"
    content = path.read_bytes()
    path.write_bytes(content[:change] if change < 0 else content + b"\0")
    with pytest.raises(DataError, match=r"should be 6148 bytes \(2 rows of 3074\)"):
        load_data("cifar100", root=tmp_path)


@pytest.mark.parametrize("labels", [(3, 0), (4, 100), (20, 0), (255, 255)])
def test_fine_and_coarse_labels_that_do_not_match_are_rejected(tmp_path, labels):
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
def test_a_pickle_with_other_content_is_rejected(tmp_path, batch, message):
    (write_pickles(tmp_path) / "test").write_bytes(pickle.dumps(batch))
    with pytest.raises(DataError, match=message):
        load_data("cifar100", root=tmp_path)


def test_the_advice_for_missing_coarse_labels_is_to_pull_cifar100(tmp_path):
    with pytest.raises(DataError, match="saddlepoint data pull cifar100`"):
        load_data("cifar100-coarse", root=tmp_path)
