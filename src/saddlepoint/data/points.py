"""Points that were saved: .npz, .npy, tensors of torch, and points.safetensors of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from saddlepoint.data.record import DataError
from saddlepoint.locate import similar_file

# Names under which points are usually saved; `adv_complete` is that of AutoAttack.
_NAMES = ("points", "x_adv", "adv", "adv_complete", "adversarial", "worst_points", "x")

_SUFFIXES = (".npz", ".npy", ".pt", ".pth", ".safetensors")


def read_points(path: Path, name: str | None = None) -> Tensor:
    """Read one point per image. Nothing is unpickled but plain tensors.

    Args:
        path: a file .npz, .npy, .pt, .pth or .safetensors. Of points.safetensors in the folder of
            a run, the worst points are read.
        name: of the array in the file; default: the only one, or one with a usual name.

    Raises:
        DataError: the file is missing, damaged, or has several arrays and none of a usual name.
    """
    if not path.is_file():
        raise DataError(f"There is no file {path}.{similar_file(path)}")
    if path.suffix not in _SUFFIXES:
        raise DataError(f"{path}: expected a file .npz, .npy, .pt, .pth or .safetensors.")
    try:
        arrays = _arrays(path)
    except Exception as error:  # what torch raises for a file of another program may be anything
        # The messages of numpy and torch advise to load pickled data, which is unsafe.
        raise DataError(
            f"{path} holds no plain arrays, or is damaged. Write it again, for instance with "
            "np.save(path, points) or torch.save(points, path)."
        ) from error
    chosen = _chosen(path, list(arrays), name)
    points = torch.as_tensor(arrays[chosen])
    if points.dtype == torch.uint8:
        return points.float() / 255
    if not points.is_floating_point() or points.ndim < 2:
        raise DataError(
            f"{path}, {chosen}: expected points [N, ...] as floating-point numbers in [0, 1] or as "
            f"bytes, found {points.dtype} {list(points.shape)}."
        )
    return points.float()


def _arrays(path: Path) -> dict[str, Any]:
    """All arrays of a file by name."""
    if path.suffix == ".safetensors":
        return dict(load_file(path))
    if path.suffix not in (".npz", ".npy"):
        stored = torch.load(path, map_location="cpu", weights_only=True)
        return dict(stored) if isinstance(stored, dict) else {"points": stored}
    # Opened here so that it is closed.
    with path.open("rb") as file:
        loaded = np.load(file, allow_pickle=False)
        return dict(loaded) if hasattr(loaded, "keys") else {"points": loaded}


def _chosen(path: Path, found: list[str], name: str | None) -> str:
    if name is not None and name in found:
        return name
    usual = [one for one in _NAMES if one in found]
    if name is None and (usual or len(found) == 1):
        return (usual or found)[0]
    wanted = "an array" if name is None else repr(name)
    raise DataError(
        f"{path}: found {', '.join(found) or 'nothing'}, but not {wanted} of points. Name the "
        "array: --array NAME."
    )
