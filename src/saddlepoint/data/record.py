"""`Data`, the type of all labeled images in the package, with its validity checks."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from saddlepoint.phrases import count

Split = Literal["train", "test"]
Array = npt.NDArray[Any]
MOST_CLASSES = 1_000_000  # a larger label is no class number: ImageNet-21k has 21,841 classes


class DataError(ValueError):
    """Data is missing, damaged or invalid.

    The message says what was expected, what was found, and what to do.
    """


@dataclass(frozen=True, eq=False, repr=False)
class Data:
    """Labeled images.

    `x, y = data` unpacks; `len(data)` is N. The constructor validates all fields, so every instance
    is valid.

    Raises:
        DataError: A field has the wrong type, shape or range.
    """

    name: str
    x: Tensor  # images, float32 [N, C, H, W] in [0, 1]
    y: Tensor  # labels, int64 [N]
    classes: tuple[str, ...]  # name of each class

    def __post_init__(self) -> None:
        self._check_shapes()
        self._check_pixels()
        self._check_labels()

    def __len__(self) -> int:
        return len(self.y)

    def __iter__(self) -> Iterator[Tensor]:
        """Yield `x`, then `y`, for unpacking. Use `batches` to loop over examples."""
        return iter((self.x, self.y))

    def __repr__(self) -> str:
        return f"Data({self.name!r}, x={list(self.x.shape)}, {count(len(self.classes), 'class')})"

    def take(self, n: int) -> Data:
        """Return the first `n` examples.

        Raises:
            DataError: `n` is larger than the number of examples. A smaller set is not returned
                instead, so that no table reports a size that was not used.
        """
        if not 1 <= n <= len(self):
            raise DataError(
                f"{self.name}: n must be between 1 and {len(self)}, the number of available "
                f"examples; got {n}."
            )
        return replace(self, x=self.x[:n], y=self.y[:n])

    def batches(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Iterate over `(x, y)` in order, `size` rows at a time; the last batch may be smaller."""
        if size < 1:
            raise DataError(f"{self.name}: a batch needs at least one example, got size {size}.")
        starts = range(0, len(self), size)
        return ((self.x[start : start + size], self.y[start : start + size]) for start in starts)

    def digest(self) -> str:
        """SHA-256 of shape, pixels and labels, in hexadecimal.

        It is the same on every machine and for every file format or memory layout.
        """
        content = hashlib.sha256(str(list(self.x.shape)).encode())
        for tensor, dtype in ((self.x, "<f4"), (self.y, "<i8")):
            content.update(np.ascontiguousarray(tensor.detach().cpu().numpy(), dtype=dtype).data)
        return content.hexdigest()

    def _check_shapes(self) -> None:
        if self.x.dtype != torch.float32 or self.x.ndim != 4:
            raise DataError(
                f"{self.name}: x must be float32 [N, C, H, W], got {_dtype_and_shape(self.x)}."
            )
        if self.y.dtype != torch.int64 or self.y.ndim != 1:
            raise DataError(f"{self.name}: y must be int64 [N], got {_dtype_and_shape(self.y)}.")
        if len(self.x) != len(self.y):
            raise DataError(
                f"{self.name}: x has {count(len(self.x), 'image')} and y has "
                f"{count(len(self.y), 'label')}; provide one label per image."
            )
        if self.x.numel() == 0:
            raise DataError(
                f"{self.name}: expected at least one image, got x of shape {list(self.x.shape)}."
            )

    def _check_pixels(self) -> None:
        lowest, highest = (float(bound) for bound in self.x.aminmax())  # NaN if any pixel is NaN
        if lowest >= 0 and highest <= 1:
            return
        not_finite = int((~self.x.isfinite()).sum())
        found = f"{not_finite} that are not finite" if not_finite else f"{lowest:g}..{highest:g}"
        bytes_likely = not not_finite and 1 < highest <= 255
        advice = "Rescale x."
        if not_finite:
            bad = (~self.x.isfinite()).flatten(1).any(1).nonzero()[:, 0]
            advice = (
                f"Repair or remove {count(len(bad), 'image')}; the first is number {int(bad[0])}."
            )
        elif -1 <= lowest < 0 and highest <= 1:
            advice = "Pass (x + 1) / 2, and let the model compute 2 x - 1 first."
        elif lowest < 0:
            advice = (
                "They seem to be normalized: undo it, x * std + mean, and normalize inside the "
                "model, torch.nn.Sequential(Normalize(mean, std), net)."
            )
        elif bytes_likely:
            advice = "Divide by 255 if these are bytes"
            advice += (
                "." if highest > 128 else f", else by their largest value, such as {highest:g}."
            )
        raise DataError(f"{self.name}: pixels must be in [0, 1], found {found}. {advice}")

    def _check_labels(self) -> None:
        lowest = int(self.y.min())
        highest = int(self.y.max())
        if lowest < 0:
            raise DataError(
                f"{self.name}: labels must start at 0, but they start at {lowest} (found "
                f"{lowest}..{highest}). {shift_up(lowest)}"
            )
        if highest >= len(self.classes):
            raise DataError(
                f"{self.name}: labels must be in 0..{len(self.classes) - 1} "
                f"({count(len(self.classes), 'class')}), found {lowest}..{highest}. Renumber the "
                "labels or name every class."
            )


def shift_up(lowest: int) -> str:
    """What to do about labels that start below 0.

    Args:
        lowest: the lowest label, negative.
    """
    return (
        f"Pass y + {-lowest} if all labels are shifted; leave images out if {lowest} marks a "
        "missing label."
    )


def from_arrays(name: str, x: Array, y: Array, classes: Sequence[str]) -> Data:
    """Build `Data` from numpy arrays.

    Args:
        name: Name of the dataset.
        x: Images [N, C, H, W], uint8 (divided by 255) or float in [0, 1].
        y: Integer labels [N] or [N, 1].
        classes: Name of each class.

    Raises:
        DataError: An array has the wrong type, shape or range.
    """
    return Data(name, _to_pixels(name, x), _to_labels(name, y), tuple(classes))


def class_numbers(y: Array) -> tuple[str, ...]:
    """Class names `"0", "1", ...` up to the largest label, for data without class names.

    Raises:
        DataError: A label is too large for a class number.
    """
    if not y.size or y.dtype.kind not in "iu":
        return ()
    if int(y.max()) >= MOST_CLASSES:
        raise DataError(
            f"labels must be class numbers below {MOST_CLASSES}, found {int(y.max())}. Renumber "
            "the classes from 0."
        )
    return tuple(str(label) for label in range(int(y.max()) + 1))


def _to_pixels(name: str, x: Array) -> Tensor:
    """Convert to float32; bytes 0..255 become 0..1."""
    if x.dtype == np.uint8:
        return torch.from_numpy(np.array(x, dtype=np.float32, order="C")).div_(255)
    if x.dtype.kind == "f":
        return torch.from_numpy(np.array(x, dtype=np.float32, order="C"))
    raise DataError(
        f"{name}: x must be uint8 (0..255) or float (0..1), got {x.dtype}. "
        "Convert it: x.astype('uint8')."
    )


def _to_labels(name: str, y: Array) -> Tensor:
    """Convert to int64; an [N, 1] column is accepted."""
    if y.dtype.kind not in "iu":
        raise DataError(
            f"{name}: labels must be integers, got {y.dtype}. Store y as int64 class numbers"
            + (": y.argmax(1) if they are one-hot." if y.ndim == 2 and y.shape[1] > 1 else ".")
        )
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    return torch.from_numpy(y.astype(np.int64))


def _dtype_and_shape(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
