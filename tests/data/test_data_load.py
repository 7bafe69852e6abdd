"""`load_data`: names, folders, users' functions, and errors when data is missing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.data.data_formats import random_bytes, write_mnist

from saddlepoint.data import SOURCES, DataError, data_roots, load_data

FUNCTION = """
import torch
from saddlepoint.data import Data
calls = []
def plain(): return torch.full((4, 1, 2, 2), 0.5), torch.tensor([0, 1, 0, 1])
def bytes_(): return [[[[0, 255]]]], [0]
def splits(split, n=None):
    calls.append((split, n))
    x, y = plain()
    return (x, y) if split == "train" else (x[:2], y[:2])
def anything(**options): calls.append(options); return plain()
def as_data(): return Data("mine", *plain(), ("cat", "dog"))
def half(): x, y = plain(); return x.bfloat16(), y
def wrong(): return 3
def flat(): x, y = plain(); return x.flatten(1), y
def bright(): x, y = plain(); return x * 300, y
number = 3
"""


@pytest.fixture
def mine(tmp_path: Path) -> str:
    (tmp_path / "mine.py").write_text(FUNCTION)
    return f"{tmp_path}/mine.py"


@pytest.mark.parametrize("name", ["plain", "anything", "as_data", "half"])
def test_a_function_can_return_images_and_labels(mine, name):
    data = load_data(f"{mine}:{name}")
    assert data.x.unique().tolist() == [0.5]
    assert data.y.tolist() == [0, 1, 0, 1]
    assert len(load_data(f"{mine}:{name}", n=3)) == 3


def test_a_function_receives_split_and_n_if_it_has_such_parameters(mine):
    from saddlepoint.locate import locate

    calls = locate(f"{mine}:calls")
    assert len(load_data(f"{mine}:splits", split="train", n=3)) == 3
    assert len(load_data(f"{mine}:splits")) == 2
    load_data(f"{mine}:anything", n=1)
    assert calls == [("train", 3), ("test", None), {"split": "test", "n": 1}]


def test_the_name_is_that_of_the_function_or_of_its_data(mine):
    assert load_data(f"{mine}:plain").name == "plain"
    assert load_data(f"{mine}:as_data").name == "mine"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("wrong", r"returned int, expected \(x, y\) or Data"),
        ("flat", r"x \[4, 4\] and y \[4\]"),
        ("bright", r"pixels must be in \[0, 1\]"),
        ("bytes_", "x must be uint8"),
        ("number", "is int, expected a function"),
        ("plan", "Did you mean 'plain'"),
    ],
)
def test_a_function_that_returns_something_else_is_rejected(mine, name, message):
    with pytest.raises(DataError, match=message):
        load_data(f"{mine}:{name}")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("cifar", "cifar10"),
        ("MNIST", "mnist"),
        ("fashion_mnist", "fashion-mnist"),
        ("tiny_imagenet", "tiny-imagenet"),
    ],
)
def test_an_unknown_name_suggests_the_nearest(name, meant):
    with pytest.raises(DataError, match=f"Did you mean '{meant}'"):
        load_data(name)


@pytest.mark.parametrize("name", sorted(set(SOURCES) - {"digits", "gtsrb10", "cifar100-coarse"}))
def test_the_error_for_missing_files_lists_folders_and_advice(tmp_path, name):
    with pytest.raises(DataError) as caught:
        load_data(name, root=tmp_path)
    message = str(caught.value)
    assert f"  {tmp_path}" in message
    assert f"saddlepoint data pull {name}" in message
    assert "--root" in message
    assert "SADDLEPOINT_DATA" in message


@pytest.mark.parametrize("n", [0, -3])
def test_n_must_be_at_least_one(n):
    with pytest.raises(DataError, match="at least 1"):
        load_data("digits", n=n)


def test_n_beyond_the_data_is_an_error_and_does_not_return_fewer_examples():
    with pytest.raises(DataError, match="between 1 and 500"):
        load_data("digits", n=501)


def test_an_unknown_split_is_an_error():
    with pytest.raises(DataError, match="'train' or 'test', got 'valid'"):
        load_data("digits", split="valid")


def test_the_root_is_the_argument_or_the_environment_variable_or_the_cache(tmp_path, monkeypatch):
    assert data_roots(tmp_path) == (tmp_path,)
    monkeypatch.setenv("SADDLEPOINT_DATA", str(tmp_path / "env"))
    assert data_roots(None)[0] == tmp_path / "env"
    write_mnist(tmp_path / "env" / "mnist", random_bytes(2, 28, 28), np.array([0, 1], np.uint8))
    assert len(load_data("mnist")) == 2
    monkeypatch.delenv("SADDLEPOINT_DATA")
    assert data_roots(None)[0].name == "saddlepoint"


@pytest.mark.parametrize(
    ("name", "size", "first"),
    [
        ("mnist", 10000, [7, 2, 1, 0, 4]),
        ("cifar10", 10000, [3, 8, 8, 0, 6]),
        ("gtsrb10", 4800, [9, 4, 4, 1, 5]),
    ],
)
def test_published_files_have_the_known_size_and_first_labels(real_data, name, size, first):
    try:
        data = load_data(name, root=real_data)
    except DataError as error:
        pytest.skip(f"{name} is not in SADDLEPOINT_DATA: {error}")
    assert len(data) == size
    assert data.y[:5].tolist() == first
