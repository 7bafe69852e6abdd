"""Tiny ImageNet: folders of JPEG images, decoded by Pillow or by a fake decoder without Pillow."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from saddlepoint.data import DataError, load_data
from saddlepoint.data.tiny_imagenet import _decode


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two classes with three training images and one validation image each.

    An image file contains its gray level as text.
    """
    folder = tmp_path / "tiny-imagenet-200"
    (folder / "val" / "images").mkdir(parents=True)
    (folder / "wnids.txt").write_text("n02\nn01\n")
    (folder / "words.txt").write_text("n01\tgoldfish, Carassius auratus\nn99\tnothing\n")
    for level, name in ((10, "n01"), (20, "n02")):
        images = folder / "train" / name / "images"
        images.mkdir(parents=True)
        for i in range(3):
            (images / f"{name}_{i}.JPEG").write_text(str(level))
        (folder / "val" / "images" / f"val_{level}.JPEG").write_text(str(level))
    (folder / "val" / "val_annotations.txt").write_text(
        "val_20.JPEG\tn02\t0\t0\t62\t62\nval_10.JPEG\tn01\t0\t0\t62\t62\n"
    )
    return folder


@pytest.fixture
def fake_decoder(monkeypatch):
    def decode(path: Path) -> np.ndarray:
        return np.full((64, 64, 3), int(path.read_text()), np.uint8)

    monkeypatch.setattr("saddlepoint.data.tiny_imagenet._decode", decode)


@pytest.mark.usefixtures("fake_decoder")
def test_labels_are_the_positions_of_the_sorted_ids(folder):
    data = load_data("tiny-imagenet", root=folder.parent)
    assert data.y.tolist() == [1, 0]
    assert (data.x[:, 0, 0, 0] * 255).round().tolist() == [20, 10]
    assert data.classes == ("goldfish", "n02")


@pytest.mark.usefixtures("fake_decoder")
def test_training_images_have_the_label_of_their_folder(folder):
    data = load_data("tiny-imagenet", root=folder, split="train")
    assert data.x.shape == (6, 3, 64, 64)
    assert (data.x[:, 0, 0, 0] * 255 / 10).round().tolist() == (data.y + 1).tolist()
    assert data.y.tolist() not in ([0, 0, 0, 1, 1, 1], [1, 1, 1, 0, 0, 0])


@pytest.mark.usefixtures("fake_decoder")
@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("val_20.JPEG\tn77\n", "n77 labels an image but is not in"),
        ("val_20.JPEG n02\n", "a tab and a WordNet id"),
        ("", "no images"),
    ],
)
def test_invalid_annotations_are_rejected(folder, table, message):
    (folder / "val" / "val_annotations.txt").write_text(table)
    with pytest.raises(DataError, match=message):
        load_data("tiny-imagenet", root=folder)


def test_without_pillow_the_error_explains_how_to_install_it(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(DataError, match="pip install pillow"):
        load_data("tiny-imagenet", root=folder)


def test_jpeg_files_are_decoded(folder):
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    for level in (10, 20):  # one is stored in gray, like some of the published files
        picture = image.fromarray(np.full((64, 64), level, np.uint8))
        (picture if level == 10 else picture.convert("RGB")).save(
            folder / "val" / "images" / f"val_{level}.JPEG", "JPEG"
        )
    data = load_data("tiny-imagenet", root=folder)
    # A constant image has no detail, so JPEG changes its level by at most the quantization of the
    # mean.
    assert (data.x * 255).mean((1, 2, 3)).tolist() == pytest.approx([20, 10], abs=2)


def test_a_damaged_jpeg_is_rejected(folder):
    pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    with pytest.raises(DataError, match="not a whole JPEG image"):
        load_data("tiny-imagenet", root=folder)


@pytest.mark.parametrize("inserted", [b"*\xa9", b"\x15U"])
def test_an_absurd_declared_size_is_rejected_before_memory_is_allocated(tmp_path, inserted):
    """The first has more pixels than Pillow accepts, the second more than it warns of."""
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    path = tmp_path / "large.jpeg"
    image.fromarray(np.zeros((64, 64, 3), np.uint8)).save(path, "JPEG")
    whole = path.read_bytes()
    path.write_bytes(whole[:163] + inserted + whole[166:])
    with pytest.raises(DataError, match=r"large\.jpeg"):
        _decode(path)
