"""Images and labels as people have them: tensors, arrays, lists, datasets and data loaders."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import RandomSampler

from saddlepoint.data.load import load_data
from saddlepoint.data.record import Data, DataError
from saddlepoint.phrases import count

_IMAGE_KEYS = ("x", "image", "images", "img", "pixel_values", "inputs")
_LABEL_KEYS = ("y", "label", "labels", "target", "targets")
_MOST_IMAGES = 1_000_000  # an iterable with more is probably endless


class LabeledImages(NamedTuple):
    """Images and labels as tensors."""

    x: Tensor  # [N, ...], floating point unless the user passed a tensor of another type
    y: Tensor  # [N]


def collect(x: Any, y: Any = None, *, n: int | None = None) -> LabeledImages:
    """Images and labels as two tensors.

    Bytes in 0..255 are divided by 255. Arrays and lists of floating-point numbers become float32;
    tensors of floating-point numbers keep their type.

    Args:
        x: images [N, ...] as a tensor, array or list; without `y` also `Data`, the name of a data
            set, a dataset, a data loader, or any iterable of batches (x, y).
        y: labels [N] as a tensor, array or list; None if `x` has them.
        n: number of images from the start; None: all.

    Raises:
        DataError: there are no labels, or the values cannot be read as images with labels.
    """
    if n is not None and n < 1:
        raise DataError(f"n must be at least 1, got {n}. Omit it to take all images.")
    if y is not None:
        return _first(_images(x), _labels(y), n)
    if isinstance(x, str):
        return LabeledImages(*load_data(x, n=n))
    if isinstance(x, Data):
        return _first(x.x, x.y, n)
    if isinstance(x, Tensor | np.ndarray):
        raise DataError(
            f"labels are missing: got images {list(x.shape)} alone. Pass x and y, or a data loader."
        )
    if _is_pair(x):
        return _first(_images(x[0]), _labels(x[1]), n)
    if hasattr(x, "__getitem__") and hasattr(x, "__len__") and not _has_batches(x):
        return _stacked((x[k] for k in range(len(x) if n is None else min(n, len(x)))), n)
    if isinstance(x, Iterable):
        _warn_of_shuffling(x)
        return _from_iterable(x, n)
    raise DataError(
        "data is x and y (tensors, arrays or lists), a dataset, a data loader or an iterable of "
        f"batches (x, y), got {type(x).__name__}."
    )


def _warn_of_shuffling(loader: object) -> None:
    """Warn of a data loader with a random order: another call has other images, or another order.

    Numbers of two calls would then not be comparable, and a stored run would not be continued.
    """
    if isinstance(getattr(loader, "sampler", None), RandomSampler):
        warnings.warn(
            "the data loader shuffles, so that another call sees the images in another order, and "
            "with `n` other images. Use DataLoader(dataset, shuffle=False).",
            stacklevel=6,  # the line of the user, outside of `saddlepoint.api`
        )


def _is_pair(x: Any) -> bool:
    """Whether it is (images, labels): two arrays, of which the second has one number per row."""
    if not isinstance(x, tuple | list) or len(x) != 2:
        return False
    arrays = all(isinstance(one, Tensor | np.ndarray) for one in x)
    return arrays and x[1].ndim == 1 and x[0].ndim > 1 and len(x[0]) == len(x[1])


def _has_batches(x: Any) -> bool:
    """Whether the entries of a sequence are batches, with several labels each."""
    if not len(x):
        return False
    _, y = _pair(x[0])
    return isinstance(y, list | tuple) or getattr(y, "ndim", 0) > 0


def _first(x: Tensor, y: Tensor, n: int | None) -> LabeledImages:
    if n is not None and n > len(x):
        raise DataError(f"n is {n}, but there are only {count(len(x), 'image')}.")
    return LabeledImages(x[:n], y[:n])


def _stacked(examples: Iterator[Any], n: int | None) -> LabeledImages:
    """The examples (image, label) of a dataset, one after the other."""
    pairs = [_pair(example) for example in examples]
    if not pairs:
        raise DataError("the dataset is empty; expected at least one image with its label.")
    images = [_image(image) for image, _ in pairs]
    shapes = sorted({tuple(image.shape) for image in images})
    if len(shapes) > 1:
        raise DataError(
            f"images have different shapes, such as {list(shapes[0])} and {list(shapes[-1])}. "
            "Resize them in the dataset, for instance with a transform."
        )
    return _first(torch.stack(images), _labels([int(label) for _, label in pairs]), n)


def _from_iterable(batches: Iterable[Any], n: int | None) -> LabeledImages:
    """The batches (images, labels) of a data loader, joined, until there are `n` images."""
    images: list[Tensor] = []
    labels: list[Tensor] = []
    total = 0
    for batch in islice(batches, _MOST_IMAGES):
        x, y = _pair(batch)
        if not isinstance(y, Tensor | np.ndarray | Sequence):
            raise DataError(
                f"an iterable yields batches (x [B, ...], y [B]), but y is {type(y).__name__}. "
                "Single examples: pass a dataset with __len__ and __getitem__, or "
                "torch.utils.data.DataLoader(dataset, batch_size=128)."
            )
        images.append(_images(x))
        labels.append(_labels(y))
        total += len(images[-1])
        if total >= (_MOST_IMAGES if n is None else n):
            break
    if not images:
        raise DataError("the iterable has no batch; an iterator can be used only once.")
    if n is None and total >= _MOST_IMAGES:
        raise DataError(
            f"the iterable has at least {count(_MOST_IMAGES, 'image')}. Say how many to take: "
            "n=1000."
        )
    return _first(torch.cat(images), torch.cat(labels), n)


def _pair(batch: Any) -> tuple[Any, Any]:
    """Images and labels of a batch or an example: a pair, or a mapping with usual names."""
    if isinstance(batch, Mapping):
        image = [key for key in _IMAGE_KEYS if key in batch]
        label = [key for key in _LABEL_KEYS if key in batch]
        if len(image) == 1 and len(label) == 1:
            return batch[image[0]], batch[label[0]]
        raise DataError(
            f"a batch has the keys {', '.join(map(str, batch))}; expected one of "
            f"{', '.join(_IMAGE_KEYS)} and one of {', '.join(_LABEL_KEYS)}. Yield pairs: "
            "((batch['A'], batch['B']) for batch in loader)."
        )
    if not isinstance(batch, tuple | list) or len(batch) < 2:
        raise DataError(
            f"expected pairs of images and labels, got {type(batch).__name__}. Yield (x, y)."
        )
    if len(batch) > 2:
        raise DataError(
            f"a batch has {count(len(batch), 'part')}; expected images and labels. Yield pairs: "
            "((batch[0], batch[1]) for batch in loader)."
        )
    return batch[0], batch[1]


def _image(image: Any) -> Tensor:
    """One image [C, H, W]. A picture of PIL has its channels last."""
    if isinstance(image, Tensor | np.ndarray):
        return _images(image)
    array = np.asarray(image)
    if hasattr(image, "getbands"):
        array = array[None] if array.ndim == 2 else np.moveaxis(array, -1, 0)
    return _images(array)


def _images(x: Any) -> Tensor:
    """Images as a tensor; bytes become numbers in [0, 1]."""
    if isinstance(x, list | tuple) and x and isinstance(x[0], Tensor):
        x = torch.stack([torch.as_tensor(one) for one in x])
    if isinstance(x, Tensor):
        return x.float() / 255 if x.dtype == torch.uint8 else x
    array = np.asarray(x)
    if array.dtype == np.uint8:
        return torch.from_numpy(array.astype(np.float32)) / 255
    if array.dtype.kind != "f":
        raise DataError(
            f"images must be uint8 (0..255) or floating point (0..1), got {array.dtype}. "
            "Convert them: x.astype('uint8')."
        )
    return torch.from_numpy(np.array(array, dtype=np.float32))


def _labels(y: Any) -> Tensor:
    """Labels as a tensor; [N, 1] becomes [N]. Other mistakes are found by the audit."""
    if isinstance(y, list | tuple) and y and isinstance(y[0], Tensor):
        y = torch.stack([torch.as_tensor(one) for one in y])
    labels = y if isinstance(y, Tensor) else torch.from_numpy(np.array(y))
    return labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
