"""The state of a training run after a whole epoch, on disk."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

State = dict[
    str, Any
]  # tensors, numbers, strings, and lists and dicts of them: what torch loads without running code
Identity = dict[str, str]  # what must be equal for one run to continue another
Weights = dict[str, Tensor]


def save(path: Path, identity: Identity, state: State) -> None:
    """Written beside the old state and then put in its place: a run killed while writing leaves the old one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    with part.open("wb") as file:
        torch.save({"identity": identity, "state": state}, file)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def load(path: Path, identity: Identity, device: torch.device) -> State | None:
    """The state to go on from; None where there is none yet."""
    if not path.is_file():
        return None
    try:
        saved = torch.load(path, map_location=device, weights_only=True)
        found = saved["identity"]
        state = saved["state"]
    except Exception as error:
        raise ValueError(
            f"{path} is no checkpoint that can be read ({error}). Remove it, or pass resume=False."
        ) from error
    other = [part for part in identity if found.get(part) != identity[part]]
    if other:
        raise ValueError(
            f"{path} was written by a run with another {' and '.join(other)}. "
            "Give this run a folder of its own, or pass resume=False to replace that one."
        )
    return dict(state)


def digest(*tensors: Tensor) -> str:
    """SHA-256 of shapes, types and values."""
    content = hashlib.sha256()
    for tensor in tensors:
        content.update(f"{tensor.dtype} {list(tensor.shape)}".encode())
        content.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return content.hexdigest()


def copied(weights: Weights) -> Weights:
    """Weights that later steps do not change."""
    return {name: value.detach().clone() for name, value in weights.items()}
