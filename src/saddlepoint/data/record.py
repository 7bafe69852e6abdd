"""Labeled images as every part of the package receives them, and the checks they pass before anyone does."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Split = Literal["train", "test"]
Array = npt.NDArray[Any]


class DataError(ValueError):
    """Data that is missing, damaged, or not what it should be; says what was expected, found, and what to do."""


@dataclass(frozen=True, eq=False, repr=False)
class Data:
    """Labeled images: `x` float32 [N, C, H, W] in [0, 1], `y` int64 [N], the name of each class.

    `x, y = data` unpacks; `len(data)` is N. Checked on construction: a `Data` that exists is valid.
    """

    name: str
    x: Tensor
    y: Tensor
    classes: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.x.dtype != torch.float32 or self.x.ndim != 4:
            raise DataError(
                f"{self.name}: x must be float32 [N, C, H, W], got {_described(self.x)}."
            )
        if self.y.dtype != torch.int64 or self.y.ndim != 1:
            raise DataError(f"{self.name}: y must be int64 [N], got {_described(self.y)}.")
        if len(self.x) != len(self.y):
            raise DataError(
                f"{self.name}: x has {len(self.x)} images and y has {len(self.y)} labels; give one label per image."
            )
        if self.x.numel() == 0:
            raise DataError(
                f"{self.name}: expected at least one image, got x of shape {list(self.x.shape)}."
            )
        self._check_pixels()
        lowest = int(self.y.min())
        highest = int(self.y.max())
        if lowest < 0 or highest >= len(self.classes):
            raise DataError(
                f"{self.name}: labels must be in 0..{len(self.classes) - 1} ({len(self.classes)} classes), "
                f"found {lowest}..{highest}. Renumber the labels or name every class."
            )

    def __len__(self) -> int:
        return len(self.y)

    def __iter__(self) -> Iterator[Tensor]:
        """`x`, then `y`: for unpacking. Use `batches` to loop over examples."""
        return iter((self.x, self.y))

    def __repr__(self) -> str:
        return f"Data({self.name!r}, x={list(self.x.shape)}, {len(self.classes)} classes)"

    def take(self, n: int) -> Data:
        """The first `n` examples.

        More than there are is an error, so that no table reports a size it did not use.
        """
        if not 1 <= n <= len(self):
            raise DataError(
                f"{self.name}: n must be between 1 and {len(self)}, the number of examples there are; got {n}."
            )
        return replace(self, x=self.x[:n], y=self.y[:n])

    def batches(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """`(x, y)` in order, `size` rows at a time; the last may be smaller."""
        if size < 1:
            raise DataError(f"{self.name}: a batch holds at least one example, got size {size}.")
        starts = range(0, len(self), size)
        return ((self.x[start : start + size], self.y[start : start + size]) for start in starts)

    def digest(self) -> str:
        """SHA-256 of shape, pixels and labels: equal on every machine, whatever file or layout the images came from."""
        content = hashlib.sha256(str(list(self.x.shape)).encode())
        for tensor, kind in ((self.x, "<f4"), (self.y, "<i8")):
            content.update(np.ascontiguousarray(tensor.detach().cpu().numpy(), dtype=kind).data)
        return content.hexdigest()

    def _check_pixels(self) -> None:
        lowest, highest = (float(bound) for bound in self.x.aminmax())  # nan if any pixel is
        if not (lowest >= 0 and highest <= 1):
            finite = bool(self.x.isfinite().all())
            found = (
                f"{lowest:g}..{highest:g}"
                if finite
                else f"{int((~self.x.isfinite()).sum())} that are not finite"
            )
            advice = (
                " Divide by 255 if these are bytes."
                if finite and 1 < highest <= 255
                else " Rescale x."
            )
            raise DataError(f"{self.name}: pixels must be in [0, 1], found {found}.{advice}")


def from_arrays(name: str, x: Array, y: Array, classes: Sequence[str]) -> Data:
    """`Data` from x [N, C, H, W], bytes (divided by 255) or floats in [0, 1], and whole-number labels y [N]."""
    return Data(name, pixels(name, x), labels(name, y), tuple(classes))


def pixels(name: str, x: Array) -> Tensor:
    """float32 pixels; bytes 0..255 become 0..1."""
    if x.dtype == np.uint8:
        return torch.from_numpy(np.array(x, dtype=np.float32, order="C")).div_(255)
    if x.dtype.kind == "f":
        return torch.from_numpy(np.array(x, dtype=np.float32, order="C"))
    raise DataError(
        f"{name}: x must be uint8 (0..255) or float (0..1), got {x.dtype}. Convert it: x.astype('uint8')."
    )


def labels(name: str, y: Array) -> Tensor:
    """int64 labels; an [N, 1] column is accepted."""
    if y.dtype.kind not in "iu":
        raise DataError(
            f"{name}: labels must be integers, got {y.dtype}. Store y as int64 class numbers."
        )
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    return torch.from_numpy(y.astype(np.int64))


def numbered(y: Array) -> tuple[str, ...]:
    """Class names `"0", "1", ...` up to the largest label, for data that names none."""
    return (
        tuple(str(label) for label in range(int(y.max()) + 1))
        if y.size and y.dtype.kind in "iu"
        else ()
    )


def _described(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
