"""CIFAR-100 in its binary layout or its Python layout.

The binary layout is the folder `cifar-100-binary`, the Python layout `cifar-100-python`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from saddlepoint import phrases
from saddlepoint.data.files import find_folder, read_bytes
from saddlepoint.data.record import Array, Data, DataError, Split, from_arrays
from saddlepoint.data.unpickle import unpickle_arrays

_FOLDERS = ("cifar-100-binary", "cifar-100-python")
_PIXELS = 3 * 32 * 32
# The binary layout does not store its number of rows. This table detects a file truncated after
# a row.
ROWS = {"train": 50_000, "test": 10_000}

# The 20 coarse classes with their five fine classes each. Both are numbered alphabetically.
_TREE = {
    "aquatic_mammals": "beaver dolphin otter seal whale",
    "fish": "aquarium_fish flatfish ray shark trout",
    "flowers": "orchid poppy rose sunflower tulip",
    "food_containers": "bottle bowl can cup plate",
    "fruit_and_vegetables": "apple mushroom orange pear sweet_pepper",
    "household_electrical_devices": "clock keyboard lamp telephone television",
    "household_furniture": "bed chair couch table wardrobe",
    "insects": "bee beetle butterfly caterpillar cockroach",
    "large_carnivores": "bear leopard lion tiger wolf",
    "large_man-made_outdoor_things": "bridge castle house road skyscraper",
    "large_natural_outdoor_scenes": "cloud forest mountain plain sea",
    "large_omnivores_and_herbivores": "camel cattle chimpanzee elephant kangaroo",
    "medium_mammals": "fox porcupine possum raccoon skunk",
    "non-insect_invertebrates": "crab lobster snail spider worm",
    "people": "baby boy girl man woman",
    "reptiles": "crocodile dinosaur lizard snake turtle",
    "small_mammals": "hamster mouse rabbit shrew squirrel",
    "trees": "maple_tree oak_tree palm_tree pine_tree willow_tree",
    "vehicles_1": "bicycle bus motorcycle pickup_truck train",
    "vehicles_2": "lawn_mower rocket streetcar tank tractor",
}
COARSE = tuple(_TREE)
FINE = tuple(sorted(name for names in _TREE.values() for name in names.split()))
COARSE_OF = tuple(
    next(k for k, names in enumerate(_TREE.values()) if fine in names.split()) for fine in FINE
)


class _Rows(NamedTuple):
    x: Array  # [rows, 3072] uint8
    coarse: Array  # [rows]
    fine: Array  # [rows]


def load_cifar100(roots: Sequence[Path], split: Split, n: int | None) -> Data:
    """Load CIFAR-100: 50000 train and 10000 test images [3, 32, 32], 100 classes, in file order.

    Args:
        roots: Folders to search.
        split: "train" or "test".
        n: Number of examples from the start; None loads all.

    Raises:
        DataError: The file is missing or damaged.
    """
    rows = _read(roots, split)
    return from_arrays("cifar100", rows.x[:n].reshape(-1, 3, 32, 32), rows.fine[:n], FINE)


def load_cifar100_coarse(roots: Sequence[Path], split: Split, n: int | None) -> Data:
    """Load CIFAR-100 with the 20 coarse labels; otherwise the same as `load_cifar100`."""
    rows = _read(roots, split)
    return from_arrays(
        "cifar100-coarse", rows.x[:n].reshape(-1, 3, 32, 32), rows.coarse[:n], COARSE
    )


def _read(roots: Sequence[Path], split: Split) -> _Rows:
    places = [*_FOLDERS, *(f"cifar100/{folder}" for folder in _FOLDERS)]
    folder = find_folder("cifar100", roots, places, (f"{split}.bin", split))
    binary = folder / f"{split}.bin"
    path = binary if binary.exists() else folder / split
    rows = _read_binary(path, ROWS[split]) if path == binary else _read_pickle(path, ROWS[split])
    # Neither layout contains a checksum. The consistency of the two labels is a substitute.
    expected = np.array([*COARSE_OF, -1])[np.minimum(rows.fine, len(FINE))]
    wrong = np.flatnonzero(expected != rows.coarse)
    if wrong.size:
        row = int(wrong[0])
        raise DataError(
            f"{path}: row {row} has fine label {rows.fine[row]} and coarse label "
            f"{rows.coarse[row]}, which do not match. The file is damaged or is not CIFAR-100: "
            "delete it and pull cifar100 again."
        )
    return rows


def _read_binary(path: Path, count: int) -> _Rows:
    """Read rows of a coarse label byte, a fine label byte and 3072 pixel bytes.

    The pixels are the red, green and blue planes, each in row-major order.
    """
    content = read_bytes(path)
    size = 2 + _PIXELS
    if len(content) != count * size:
        raise DataError(
            f"{path} should be {phrases.count(count * size, 'byte')} "
            f"({phrases.count(count, 'row')} of {size}), found {len(content)}. The file is damaged "
            "or truncated: delete it and pull cifar100 again."
        )
    rows = np.frombuffer(content, np.uint8).reshape(count, size)
    return _Rows(rows[:, 2:], rows[:, 0], rows[:, 1])


def _read_pickle(path: Path, count: int) -> _Rows:
    """Read a pickled dictionary with `data`, `coarse_labels` and `fine_labels`.

    `data` is uint8 [rows, 3072]; the labels are lists of integers.
    """
    batch = unpickle_arrays(read_bytes(path), str(path))
    x = batch.get("data")
    if not isinstance(x, np.ndarray) or x.dtype != np.uint8 or x.shape != (count, _PIXELS):
        found = f"{x.dtype} {x.shape}" if isinstance(x, np.ndarray) else f"keys {sorted(batch)}"
        raise DataError(
            f"{path}: expected `data` of uint8 ({count}, {_PIXELS}), found {found}. "
            "Download the file again."
        )
    coarse = _checked_labels(path, batch.get("coarse_labels"), "coarse_labels", count)
    fine = _checked_labels(path, batch.get("fine_labels"), "fine_labels", count)
    return _Rows(x, coarse, fine)


def _checked_labels(path: Path, found: object, key: str, count: int) -> Array:
    if (
        not isinstance(found, list)
        or len(found) != count
        or not all(type(label) is int for label in found)
    ):
        raise DataError(
            f"{path}: expected `{key}`, a list of {phrases.count(count, 'integer')}. Download the "
            "file again."
        )
    return np.array(found, dtype=np.int64)
