"""Any `.npz` file with images `x` and labels `y`, or a folder with `train.npz` and `test.npz`."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from saddlepoint.data.files import refuse_web_page
from saddlepoint.data.record import Array, Data, DataError, Split, from_arrays, numbered

_CHANNELS = (1, 3)


class Arrays(NamedTuple):
    x: Array  # [N, C, H, W], uint8 or float
    y: Array  # [N]
    classes: tuple[str, ...]


def load_npz(path: Path, split: Split, n: int | None) -> Data:
    """The images of a file, or of the file of `split` in a folder.

    A file holds one set, `x` and `y`, returned for either split, or two: `x_train`, `y_train`, `x_test`, `y_test`. `x`
    is uint8 in 0..255 or float in 0..1; [N, H, W] is one channel. Of [N, a, b, c], the first or last of a, b, c that is
    1 or 3 is taken for the channels; where both or neither are, the file must say so in an entry `layout`, "NCHW" or
    "NHWC". An entry `classes` may name the classes; otherwise they are numbered up to the largest label in the file.
    """
    arrays = read_npz(path / f"{split}.npz" if path.is_dir() else path, split)
    return from_arrays(path.stem, arrays.x[:n], arrays.y[:n], arrays.classes)


def read_npz(path: Path, split: Split = "test") -> Arrays:
    """Images as [N, C, H, W], labels and class names of one file; never unpickles."""
    if not path.is_file():
        raise DataError(
            f"There is no file {path}. Check the path; a relative one starts at {Path.cwd()}."
        )
    refuse_web_page(path)
    try:
        with path.open("rb") as file:  # ours to close: numpy leaves a damaged one open
            stored = np.load(file, allow_pickle=False)
            if not isinstance(stored, np.lib.npyio.NpzFile):
                raise DataError(
                    f"{path} is a single array; store images and labels: np.savez(path, x=x, y=y)."
                )
            entries = {key: stored[key] for key in stored.files if key in _read_keys(split)}
            found = sorted(stored.files)
    except DataError:
        raise
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(
            f"{path} is not a whole .npz file of plain arrays ({error}). Write it again."
        ) from error
    x, y = _pair(path, entries, found, split)
    if len(x) != len(y):
        raise DataError(
            f"{path}: x has {len(x)} images and y has {len(y)} labels; give one label per image."
        )
    names = tuple(str(name) for name in entries["classes"]) if "classes" in entries else numbered(y)
    return Arrays(
        _channels_first(path, x, str(entries["layout"]) if "layout" in entries else None), y, names
    )


def _read_keys(split: Split) -> tuple[str, ...]:
    return ("x", "y", f"x_{split}", f"y_{split}", "classes", "layout")


def _pair(
    path: Path, entries: Mapping[str, Array], found: Sequence[str], split: Split
) -> tuple[Array, Array]:
    for x, y in (("x", "y"), (f"x_{split}", f"y_{split}")):
        if x in entries and y in entries:
            return entries[x], entries[y]
    raise DataError(
        f"{path}: expected arrays x and y (or x_{split} and y_{split}), found {', '.join(found) or 'none'}. "
        "Write it with np.savez(path, x=x, y=y)."
    )


def _channels_first(path: Path, x: Array, layout: str | None) -> Array:
    if x.ndim == 3:
        return x[:, None]
    if x.ndim != 4:
        raise DataError(
            f"{path}: expected x of shape [N, C, H, W], [N, H, W, C] or [N, H, W], found {list(x.shape)}."
        )
    if layout is None:
        first = x.shape[1] in _CHANNELS
        last = x.shape[3] in _CHANNELS
        if first == last:
            raise DataError(
                f"{path}: cannot tell whether x {list(x.shape)} is NCHW or NHWC. Say so in the file: "
                "np.savez(path, x=x, y=y, layout='NCHW')."
            )
        layout = "NCHW" if first else "NHWC"
    if layout not in ("NCHW", "NHWC"):
        raise DataError(f"{path}: layout must be 'NCHW' or 'NHWC', found {layout!r}.")
    return x if layout == "NCHW" else np.moveaxis(x, 3, 1)
