"""The bundled digits and their fixed split."""

from __future__ import annotations

import torch

from saddlepoint.data import load_data


def test_the_split_never_changes():
    assert (
        load_data("digits").digest()
        == "7e59c37842f21cc719fbad60b7c91e1439c786190960e1f71eafc0fcda5841d1"
    )
    train = load_data("digits", split="train")
    assert train.digest() == "f86ace65a2fcc3ea4b60078ada4b05ac974bf881de857351e71c7844cc868bca"


def test_train_and_test_together_contain_every_image_once():
    from sklearn.datasets import load_digits

    images, _ = load_digits(return_X_y=True)
    parts = [load_data("digits", split=split).x.flatten(1) * 16 for split in ("train", "test")]
    assert [len(part) for part in parts] == [1297, 500]
    assert sorted(torch.cat(parts).tolist()) == sorted(images.tolist())


def test_every_class_has_its_proportion_in_the_test_set():
    train = load_data("digits", split="train")
    test = load_data("digits")
    for digit in range(10):
        in_test = int((test.y == digit).sum())
        total = in_test + int((train.y == digit).sum())
        # Even steps through a list sorted by class select from each run of `total` items its
        # proportional number, to within one.
        assert abs(in_test - total * 500 / 1797) < 1


def test_the_first_100_examples_contain_every_class():
    assert len(load_data("digits", n=100).y.unique()) == 10
