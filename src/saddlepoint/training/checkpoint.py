"""Save and load the state of a training run after a whole epoch."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

# Only tensors, numbers, strings, lists and dicts: `torch.load` reads these without running code.
State = dict[str, Any]
# Facts about a run. All of them must be equal for one run to resume another.
Identity = dict[str, str]
Weights = dict[str, Tensor]


def save(path: Path, identity: Identity, state: State) -> None:
    """Write a checkpoint atomically.

    The file is written under a temporary name, synced to disk and then renamed. A run that is
    killed while it writes leaves the previous checkpoint intact.

    Args:
        path: The file to write. Missing folders are created.
        identity: Facts about the run that `load` compares.
        state: What the run needs in order to continue.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    with part.open("wb") as file:
        torch.save({"identity": identity, "state": state}, file)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def load(path: Path, identity: Identity, device: torch.device) -> State | None:
    """Read a checkpoint of the same run.

    Args:
        path: The file to read.
        identity: Facts about the current run.
        device: The device that receives the tensors.

    Returns:
        The saved state, or None if the file does not exist.

    Raises:
        ValueError: The file is not a checkpoint, or another run wrote it.
    """
    if not path.is_file():
        return None
    try:
        saved = torch.load(path, map_location=device, weights_only=True)
        found = saved["identity"]
        state = saved["state"]
    except Exception as error:
        raise ValueError(
            f"{path} is not a readable checkpoint ({error}). Delete it, or pass resume=False."
        ) from error
    different = [part for part in identity if found.get(part) != identity[part]]
    if different:
        raise ValueError(
            f"{path} was written by a run with another {' and '.join(different)}. "
            "Use a separate folder for this run, or pass resume=False to overwrite the checkpoint."
        )
    return dict(state)


def digest(*tensors: Tensor) -> str:
    """Return the SHA-256 of the types, shapes and values of the tensors."""
    content = hashlib.sha256()
    for tensor in tensors:
        content.update(f"{tensor.dtype} {list(tensor.shape)}".encode())
        content.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return content.hexdigest()


def copy_weights(weights: Weights) -> Weights:
    """Copy weights so that later training steps do not change the copy."""
    return {name: value.detach().clone() for name, value in weights.items()}
