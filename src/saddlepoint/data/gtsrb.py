"""German Traffic Sign Recognition Benchmark (GTSRB).

Reads the official folders of PPM images, or the files `train.npz` and `test.npz`.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from saddlepoint.data.files import find_folder
from saddlepoint.data.npz import read_npz
from saddlepoint.data.order import fixed_order
from saddlepoint.data.ppm import read_ppm
from saddlepoint.data.record import Data, DataError, Split, from_arrays

SIGNS = (
    *(f"Speed limit ({speed} km/h)" for speed in (20, 30, 50, 60, 70, 80)),
    "End of speed limit (80 km/h)",
    "Speed limit (100 km/h)",
    "Speed limit (120 km/h)",
    "No passing",
    "No passing for vehicles over 3.5 tons",
    "Right of way at the next intersection",
    "Priority road",
    "Yield",
    "Stop",
    "No vehicles",
    "Vehicles over 3.5 tons prohibited",
    "No entry",
    "General caution",
    "Dangerous curve to the left",
    "Dangerous curve to the right",
    "Double curve",
    "Bumpy road",
    "Slippery road",
    "Road narrows on the right",
    "Road work",
    "Traffic signals",
    "Pedestrians",
    "Children crossing",
    "Bicycles crossing",
    "Beware of ice or snow",
    "Wild animals crossing",
    "End of all speed and passing limits",
    "Turn right ahead",
    "Turn left ahead",
    "Ahead only",
    "Go straight or right",
    "Go straight or left",
    "Keep right",
    "Keep left",
    "Roundabout mandatory",
    "End of no passing",
    "End of no passing for vehicles over 3.5 tons",
)
_FOLDERS = ("gtsrb/GTSRB", "gtsrb", "GTSRB")
_TRAINING = ("Final_Training/Images", "Training")
_TEST_LABELS = ("GT-final_test.csv", "../GT-final_test.csv", "Final_Test/Images/GT-final_test.csv")
_SIDE = 32


def load_gtsrb(roots: Sequence[Path], split: Split, n: int | None) -> Data:
    """Load all 43 classes: 39209 train and 12630 test images, resized to [3, 32, 32].

    The whole image is used, not the crop to the sign. Resizing is bilinear with antialiasing. The
    training files are sorted by class on disk; they are returned in a fixed shuffled order. Test
    images are returned in the order of `GT-final_test.csv`, which is already shuffled.

    Args:
        roots: Folders to search.
        split: "train" or "test".
        n: Number of examples from the start; None loads all.

    Raises:
        DataError: A file is missing or damaged.
    """
    npz = f"{split}.npz"
    official = _TRAINING if split == "train" else _TEST_LABELS
    folder = find_folder("gtsrb", roots, _FOLDERS, (*official, npz))
    if not any((folder / place).exists() for place in official):
        return _from_npz("gtsrb", folder / npz, SIGNS, n)
    listed = _training_files(folder) if split == "train" else _test_files(folder)
    if not listed:
        raise DataError(
            f"gtsrb: {folder} lists no {split} images. Run `saddlepoint data pull gtsrb`."
        )
    paths, y = zip(*listed[:n], strict=True)
    return Data("gtsrb", torch.stack([_read_image(path) for path in paths]), torch.tensor(y), SIGNS)


def load_gtsrb10(roots: Sequence[Path], split: Split, n: int | None) -> Data:
    """Load classes 0 to 9 from `train.npz` or `test.npz` in the folder `gtsrb10`, in file order.

    The arguments and errors are those of `load_gtsrb`.
    """
    file = f"{split}.npz"
    folder = find_folder("gtsrb10", roots, ("gtsrb10",), (file,))
    return _from_npz("gtsrb10", folder / file, SIGNS[:10], n)


def _from_npz(name: str, path: Path, classes: Sequence[str], n: int | None) -> Data:
    x, y, _ = read_npz(path)
    return from_arrays(name, x[:n], y[:n], classes)


def _training_files(folder: Path) -> list[tuple[Path, int]]:
    """Image paths and labels of the training set, in the fixed shuffled order."""
    images = next(folder / place for place in _TRAINING if (folder / place).exists())
    tables = sorted(images.glob("[0-9]*/GT-*.csv"))
    listed = [row for table in tables for row in _read_table(table, table.parent)]
    return [listed[index] for index in fixed_order(len(listed))]


def _test_files(folder: Path) -> list[tuple[Path, int]]:
    """Image paths and labels of the test set, in the order of the table."""
    table = next(folder / place for place in _TEST_LABELS if (folder / place).exists())
    return list(_read_table(table, folder / "Final_Test" / "Images"))


def _read_table(table: Path, images: Path) -> Iterable[tuple[Path, int]]:
    with table.open(newline="") as file:
        for row in csv.DictReader(file, delimiter=";", skipinitialspace=True):
            name = row.get("Filename")
            label = row.get("ClassId")
            if not name or not label or not label.isdigit():
                raise DataError(
                    f"{table}: expected columns Filename and ClassId separated by ';', found {row}."
                )
            yield images / name, int(label)


def _read_image(path: Path) -> Tensor:
    """One image resized to [3, 32, 32], float32 in [0, 1]."""
    if not path.exists():
        raise DataError(
            f"gtsrb: {path} is listed but missing. The dataset is incomplete: "
            "run `saddlepoint data pull gtsrb`."
        )
    pixels = torch.tensor(read_ppm(path), dtype=torch.float32)  # [H, W, 3]
    image = pixels.permute(2, 0, 1)[None] / 255  # [1, 3, H, W]
    return interpolate(image, size=(_SIDE, _SIDE), mode="bilinear", antialias=True)[0].clamp(0, 1)
