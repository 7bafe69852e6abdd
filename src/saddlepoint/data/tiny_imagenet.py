"""Tiny ImageNet: 200 classes of 64x64 JPEG images in the folder `tiny-imagenet-200`."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from saddlepoint.data.files import find_folder, reject_web_page
from saddlepoint.data.order import fixed_order
from saddlepoint.data.record import Array, Data, DataError, Split, from_arrays

_NAME = "tiny-imagenet"
_FOLDERS = ("tiny-imagenet-200", "tiny-imagenet/tiny-imagenet-200", "tiny-imagenet")
_SIDE = 64


def load_tiny_imagenet(roots: Sequence[Path], split: Split, n: int | None) -> Data:
    """Load Tiny ImageNet: 100000 train and 10000 test images [3, 64, 64].

    The split "test" is the folder `val`, because the labels of the folder `test` were never
    published. Classes are numbered in the alphabetical order of their WordNet ids, as in
    torchvision's `ImageFolder`, not in the order of `wnids.txt`. Training images are returned in a
    fixed shuffled order. The whole training set takes 5 GB of memory; `n` reduces it in proportion.

    Args:
        roots: Folders to search.
        split: "train" or "test".
        n: Number of examples from the start; None loads all.

    Raises:
        DataError: A file is missing or damaged, or Pillow is not installed.
    """
    folder = find_folder(_NAME, roots, _FOLDERS, ("wnids.txt",))
    ids = sorted((folder / "wnids.txt").read_text().split())
    number = {wordnet_id: index for index, wordnet_id in enumerate(ids)}
    listed = _training_files(folder, ids) if split == "train" else _validation_files(folder)
    if not listed:
        raise DataError(
            f"{_NAME}: {folder} lists no images for {split}. Run `saddlepoint data pull {_NAME}`."
        )
    unknown = {wordnet_id for _, wordnet_id in listed} - set(ids)
    if unknown:
        raise DataError(
            f"{_NAME}: {min(unknown)} labels an image but is not in {folder / 'wnids.txt'}. "
            "Download the data again."
        )
    x = np.stack([_decode(path) for path, _ in listed[:n]])  # [N, H, W, C]
    y = np.array([number[wordnet_id] for _, wordnet_id in listed[:n]])
    return from_arrays(_NAME, np.moveaxis(x, 3, 1), y, _class_names(folder, ids))


def _training_files(folder: Path, ids: Sequence[str]) -> list[tuple[Path, str]]:
    """Paths and WordNet ids of the training images, in the fixed shuffled order."""
    listed = [
        (path, name)
        for name in ids
        for path in sorted((folder / "train" / name / "images").glob("*.JPEG"))
    ]
    return [listed[index] for index in fixed_order(len(listed))]


def _validation_files(folder: Path) -> list[tuple[Path, str]]:
    """Paths and WordNet ids of the validation images, from `val_annotations.txt`.

    A line of that file contains the file name, the WordNet id and the bounding box, separated by
    tabs.
    """
    table = folder / "val" / "val_annotations.txt"
    if not table.exists():
        raise DataError(f"{_NAME}: {table} is missing. Run `saddlepoint data pull {_NAME}`.")
    rows = [line.split("\t") for line in table.read_text().splitlines() if line.strip()]
    short = next((row for row in rows if len(row) < 2), None)
    if short is not None:
        raise DataError(
            f"{table}: expected a file name, a tab and a WordNet id on every line, found "
            f"{short[0]!r}."
        )
    return [(folder / "val" / "images" / row[0], row[1]) for row in rows]


def _class_names(folder: Path, ids: Sequence[str]) -> list[str]:
    """The first name of each class in `words.txt`, or its id if the file has no name for it."""
    table = folder / "words.txt"
    rows = (
        [line.split("\t", 1) for line in table.read_text().splitlines()] if table.exists() else []
    )
    named = {row[0]: row[1].split(",")[0] for row in rows if len(row) == 2}
    return [named.get(wordnet_id, wordnet_id) for wordnet_id in ids]


def _decode(path: Path) -> Array:
    try:
        image = importlib.import_module("PIL.Image")
    except ImportError as error:
        raise DataError(
            f"{_NAME} is stored as JPEG; reading it requires Pillow: pip install pillow"
        ) from error
    if not path.exists():
        raise DataError(
            f"{_NAME}: {path} is listed but missing. Run `saddlepoint data pull {_NAME}`."
        )
    reject_web_page(path)
    try:
        with warnings.catch_warnings():
            # Pillow only warns of sizes that would take gigabytes.
            warnings.simplefilter("error", image.DecompressionBombWarning)
            with image.open(path, formats=["JPEG"]) as opened:
                _check_size(path, *opened.size)  # as declared, before memory is allocated
                pixels: Array = np.asarray(opened.convert("RGB"))
    except (OSError, image.DecompressionBombError, image.DecompressionBombWarning) as error:
        raise DataError(
            f"{path} is not a whole JPEG image ({error}). Download it again."
        ) from error
    return pixels


def _check_size(path: Path, width: int, height: int) -> None:
    if (width, height) != (_SIDE, _SIDE):
        raise DataError(f"{path}: expected {_SIDE} x {_SIDE} pixels, found {width} x {height}.")
