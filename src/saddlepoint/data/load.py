"""`load_data`: loads labeled images by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import get_args

from saddlepoint.data.cifar import load_cifar10
from saddlepoint.data.cifar100 import load_cifar100, load_cifar100_coarse
from saddlepoint.data.digits import load_digits
from saddlepoint.data.factory import load_factory
from saddlepoint.data.files import data_roots
from saddlepoint.data.gtsrb import load_gtsrb, load_gtsrb10
from saddlepoint.data.idx import load_fashion_mnist, load_mnist
from saddlepoint.data.npz import load_npz
from saddlepoint.data.record import Data, DataError, Split
from saddlepoint.data.svhn import load_svhn
from saddlepoint.data.tiny_imagenet import load_tiny_imagenet

# Each loader takes the folders to search, the split and n. It returns the first n examples, or all
# examples if there are fewer.
SOURCES: Mapping[str, Callable[[Sequence[Path], Split, int | None], Data]] = {
    "digits": load_digits,
    "mnist": load_mnist,
    "fashion-mnist": load_fashion_mnist,
    "cifar10": load_cifar10,
    "cifar100": load_cifar100,
    "cifar100-coarse": load_cifar100_coarse,
    "svhn": load_svhn,
    "gtsrb": load_gtsrb,
    "gtsrb10": load_gtsrb10,
    "tiny-imagenet": load_tiny_imagenet,
}


def load_data(
    name: str, *, split: Split = "test", n: int | None = None, root: str | Path | None = None
) -> Data:
    """Load labeled images by name: `x, y = load_data("digits", n=100)`.

    Args:
        name: One of `SOURCES`, a path ending in `.npz`, a folder with `train.npz` and `test.npz`,
            or a function: `package.module:function` or `file.py:function`. Only `digits` is
            bundled with the package; `pull` downloads the others.
        split: "train" or "test" (default).
        n: Number of examples from the start; None (default) loads all. The order is fixed, and for
            every named source the classes are shuffled.
        root: Folder of the data. Without it, the environment variable SADDLEPOINT_DATA or the
            user's cache folder.

    Raises:
        DataError: The name is unknown, the data is missing or damaged, or `n` exceeds its size.
    """
    if split not in get_args(Split):
        raise DataError(f"split must be 'train' or 'test', got {split!r}.")
    if n is not None and (not isinstance(n, int) or n < 1):
        raise DataError(
            f"n must be a whole number, at least 1, got {n!r}. Omit it to load all examples."
        )
    data = _load(name, split, n, data_roots(root))
    return data if n is None else data.take(n)


def _load(name: str, split: Split, n: int | None, roots: Sequence[Path]) -> Data:
    if name in SOURCES:
        return SOURCES[name](roots, split, n)
    if name.endswith(".npz"):
        return load_npz(_resolve_file(Path(name).expanduser(), roots), split, n)
    if ":" in name:
        return load_factory(name, split, n)
    if Path(name).expanduser().is_dir():
        return load_npz(Path(name).expanduser(), split, n)
    raise unknown_name_error(name, SOURCES)


def unknown_name_error(name: str, known: Mapping[str, object]) -> DataError:
    """The error for an unknown dataset name; suggests the most similar known name."""
    near = get_close_matches(name.lower().replace("_", "-"), known, n=1, cutoff=0.5)
    advice = f" Did you mean {near[0]!r}?" if near else ""
    return DataError(
        f"There is no dataset named {name!r}.{advice} Known: {', '.join(known)}; or a path ending "
        "in .npz, or 'file.py:function'."
    )


def _resolve_file(path: Path, roots: Sequence[Path]) -> Path:
    """The first existing file among `path` and `root / path`; `path` itself if there is none."""
    candidates = (path, *(root / path for root in roots))
    return next((place for place in candidates if place.is_file()), path)
