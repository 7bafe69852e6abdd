"""Images `x` and labels `y` in a `.npz` file, or a folder with `train.npz` and `test.npz`."""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from saddlepoint.data.files import reject_web_page
from saddlepoint.data.record import Array, Data, DataError, Split, class_numbers, from_arrays
from saddlepoint.locate import similar_file
from saddlepoint.phrases import count

_CHANNELS = (1, 3)
# Blank images compress a thousandfold; a zip bomb does so on purpose, and is large.
_RATIO = 200
_SMALL = 2**30  # bytes that are always allowed
_MOST_ENTRIES = 1000
_LONGEST_HEADER = 10_000  # bytes


class Arrays(NamedTuple):
    """The content of one file."""

    x: Array  # [N, C, H, W], uint8 or float
    y: Array  # [N]
    classes: tuple[str, ...]


def load_npz(path: Path, split: Split, n: int | None) -> Data:
    """Load a `.npz` file, or the file of `split` in a folder.

    A file contains one set, `x` and `y`, which is returned for both splits, or two sets: `x_train`,
    `y_train`, `x_test`, `y_test`. `x` is uint8 in 0..255 or float in [0, 1]. [N, H, W] means one
    channel. For [N, a, b, c], the channel axis is a or c, whichever has size 1 or 3. If both or
    neither have, the file must contain an entry `layout`, "NCHW" or "NHWC". An optional entry
    `classes` names the classes; without it they are numbered up to the largest label in the file.

    Args:
        path: The file or the folder.
        split: "train" or "test".
        n: Number of examples from the start; None loads all.

    Raises:
        DataError: The file is missing, damaged, or does not have this content.
    """
    arrays = read_npz(path / f"{split}.npz" if path.is_dir() else path, split)
    return from_arrays(path.stem, arrays.x[:n], arrays.y[:n], arrays.classes)


def read_npz(path: Path, split: Split = "test") -> Arrays:
    """Read images, labels and class names of one file, without unpickling anything.

    Raises:
        DataError: The file is missing, damaged, or has other content.
    """
    if not path.is_file():
        raise DataError(
            f"There is no file {path}.{similar_file(path)} Check the path; relative paths start at "
            f"{Path.cwd()}."
        )
    reject_web_page(path)
    try:
        # Opened here so that it is closed: numpy leaves a damaged file open.
        with path.open("rb") as file:
            _check_declared_sizes(path)
            stored = np.load(file, allow_pickle=False)
            if not isinstance(stored, np.lib.npyio.NpzFile):
                raise DataError(
                    f"{path} contains a single array; store images and labels: "
                    "np.savez(path, x=x, y=y)."
                )
            entries = {key: stored[key] for key in stored.files if key in _known_keys(split)}
            found = sorted(stored.files)
    except DataError:
        raise
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(
            f"{path} is not a whole .npz file of plain arrays ({_reason(path, error)}). Write it "
            "again: np.savez(path, x=x, y=y)."
        ) from error
    x, y = _images_and_labels(path, entries, found, split)
    if len(x) != len(y):
        raise DataError(
            f"{path}: x has {count(len(x), 'image')} and y has {count(len(y), 'label')}; provide "
            "one label per image."
        )
    layout = str(entries["layout"]) if "layout" in entries else None
    if "classes" in entries:
        classes = tuple(str(name) for name in entries["classes"])
    else:
        classes = class_numbers(y)
    return Arrays(_channels_first(path, x, layout), y, classes)


def _reason(path: Path, error: Exception) -> str:
    """Why a file cannot be read. numpy would advise to load pickled data, which is unsafe."""
    if not zipfile.is_zipfile(path):
        return "it is no .npz archive"
    return "an array has pickled objects" if "allow_pickle" in str(error) else str(error)


def _check_declared_sizes(path: Path) -> None:
    """Reject a file that unpacks to far more than it holds, before memory is allocated.

    Raises:
        DataError: The declared size of an array, or of all arrays, is absurd.
        zipfile.BadZipFile: It is not a whole file.
    """
    if not zipfile.is_zipfile(path):
        return
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
        if len(entries) > _MOST_ENTRIES:
            raise DataError(
                f"{path} has {count(len(entries), 'entry')}; expected at most {_MOST_ENTRIES}."
            )
        unpacked = sum(entry.file_size for entry in entries)
        if unpacked > max(_RATIO * path.stat().st_size, _SMALL):
            raise DataError(
                f"{path} has {count(path.stat().st_size, 'byte')} and unpacks to {unpacked}: "
                "images do not compress like that. Write it again from the original images."
            )
        for entry in entries:
            _check_array(path, archive, entry)


def _check_array(path: Path, archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> None:
    """Check that the shape in the header of an array fits the size of its entry."""
    with archive.open(entry) as file:
        if file.read(6) != b"\x93NUMPY":
            return
        major = file.read(2)[:1]
        length = int.from_bytes(file.read(2 if major == b"\x01" else 4), "little")
        if length > _LONGEST_HEADER:
            raise DataError(f"{path}, {entry.filename}: the header of the array is too long.")
    with archive.open(entry) as file:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0
        if version != (1, 0):
            read = np.lib.format.read_array_header_2_0
        shape, _, dtype = read(file)
        declared = math.prod(shape) * dtype.itemsize
        if declared > entry.file_size:
            raise DataError(
                f"{path}, {entry.filename}: shape {list(shape)} of {dtype} needs "
                f"{count(declared, 'byte')}, "
                f"but the file holds {entry.file_size}."
            )


def _known_keys(split: Split) -> tuple[str, ...]:
    return ("x", "y", f"x_{split}", f"y_{split}", "classes", "layout")


def _images_and_labels(
    path: Path, entries: Mapping[str, Array], found: Sequence[str], split: Split
) -> tuple[Array, Array]:
    for x, y in (("x", "y"), (f"x_{split}", f"y_{split}")):
        if x in entries and y in entries:
            return entries[x], entries[y]
    raise DataError(
        f"{path}: expected arrays x and y (or x_{split} and y_{split}), found "
        f"{', '.join(found) or 'none'}. Write the file with np.savez(path, x=x, y=y)."
    )


def _channels_first(path: Path, x: Array, layout: str | None) -> Array:
    if x.ndim == 3:
        return x[:, None]
    if x.ndim != 4:
        raise DataError(
            f"{path}: expected x of shape [N, C, H, W], [N, H, W, C] or [N, H, W], found "
            f"{list(x.shape)}."
        )
    if layout is None:
        maybe_first = x.shape[1] in _CHANNELS
        maybe_last = x.shape[3] in _CHANNELS
        if maybe_first == maybe_last:
            raise DataError(
                f"{path}: it is ambiguous whether x {list(x.shape)} is NCHW or NHWC. Store the "
                "layout in the file: np.savez(path, x=x, y=y, layout='NCHW')."
            )
        layout = "NCHW" if maybe_first else "NHWC"
    if layout not in ("NCHW", "NHWC"):
        raise DataError(f"{path}: layout must be 'NCHW' or 'NHWC', found {layout!r}.")
    return x if layout == "NCHW" else np.moveaxis(x, 3, 1)
