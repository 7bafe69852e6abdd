"""German Traffic Sign Recognition Benchmark: the official folders of PPM images, or `train.npz` and `test.npz`."""

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
    """All 43 signs, 39209 train and 12630 test images resized to [3, 32, 32].

    Whole images (not cropped to the sign), bilinear with antialiasing. Training files are sorted by class on disk and
    come in a fixed mixed order here; test images come in the order of `GT-final_test.csv`, which is already mixed.
    """
    npz = f"{split}.npz"
    wanted = (*_TRAINING, npz) if split == "train" else (*_TEST_LABELS, npz)
    folder = find_folder("gtsrb", roots, _FOLDERS, wanted)
    if not any((folder / place).exists() for place in wanted[:-1]):
        return _from_npz("gtsrb", folder / npz, SIGNS, n)
    listed = _training_files(folder) if split == "train" else _test_files(folder)
    if not listed:
        raise DataError(
            f"gtsrb: {folder} lists no {split} images. Run `saddlepoint data pull gtsrb`."
        )
    paths, y = zip(*listed[:n], strict=True)
    return Data("gtsrb", torch.stack([_image(path) for path in paths]), torch.tensor(y), SIGNS)


def load_gtsrb10(roots: Sequence[Path], split: Split, n: int | None) -> Data:
    """Signs 0 to 9 only, from `train.npz` and `test.npz` in the folder `gtsrb10`, in the order of the file."""
    file = f"{split}.npz"
    return _from_npz(
        "gtsrb10", find_folder("gtsrb10", roots, ("gtsrb10",), (file,)) / file, SIGNS[:10], n
    )


def _from_npz(name: str, path: Path, classes: Sequence[str], n: int | None) -> Data:
    x, y, _ = read_npz(path)
    return from_arrays(name, x[:n], y[:n], classes)


def _training_files(folder: Path) -> list[tuple[Path, int]]:
    images = next(folder / place for place in _TRAINING if (folder / place).exists())
    tables = sorted(images.glob("[0-9]*/GT-*.csv"))
    listed = [row for table in tables for row in _rows(table, table.parent)]
    return [listed[index] for index in fixed_order(len(listed))]


def _test_files(folder: Path) -> list[tuple[Path, int]]:
    table = next(folder / place for place in _TEST_LABELS if (folder / place).exists())
    return list(_rows(table, folder / "Final_Test" / "Images"))


def _rows(table: Path, images: Path) -> Iterable[tuple[Path, int]]:
    with table.open(newline="") as file:
        for row in csv.DictReader(file, delimiter=";", skipinitialspace=True):
            name = row.get("Filename")
            label = row.get("ClassId")
            if not name or not label or not label.isdigit():
                raise DataError(
                    f"{table}: expected columns Filename and ClassId separated by ';', found {row}."
                )
            yield images / name, int(label)


def _image(path: Path) -> Tensor:
    if not path.exists():
        raise DataError(
            f"gtsrb: {path} is listed but missing. The folder is not whole: run `saddlepoint data pull gtsrb`."
        )
    pixels = (
        torch.tensor(read_ppm(path), dtype=torch.float32).permute(2, 0, 1)[None] / 255
    )  # [1, 3, H, W]
    return interpolate(pixels, size=(_SIDE, _SIDE), mode="bilinear", antialias=True)[0].clamp(0, 1)
