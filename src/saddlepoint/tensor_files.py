"""Write tensors to a file of the safetensors format without a second copy of them in memory."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from saddlepoint.atomic import write_atomic_by

# In the order of the format: tensors with wider types come first, so that all are aligned.
_NAMES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int32: "I32",
    torch.float32: "F32",
    torch.float64: "F64",
    torch.int64: "I64",
}
_ORDER = {dtype: place for place, dtype in enumerate(_NAMES)}
_ALIGNMENT = 8  # bytes
_BLOCK = 2**20  # bytes that are read at once


def write_tensors(path: Path, tensors: Mapping[str, Tensor], *, sync: bool = False) -> str:
    """Write tensors completely or not at all; returns the SHA-256 of the file.

    The bytes are those of `safetensors.torch.save`, which needs as much memory again.

    Args:
        path: The file to write, as in `write_atomic`.
        tensors: The tensors by name.
        sync: As in `write_atomic`.

    Raises:
        OSError: The file cannot be written.
    """
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}

    def write(temporary: Path) -> None:
        with temporary.open("wb") as file:
            for part in _parts(plain):
                file.write(part)

    write_atomic_by(path, write, sync=sync)
    digest = hashlib.sha256()
    for part in _parts(plain):
        digest.update(part)
    return digest.hexdigest()


def file_sha256(path: Path) -> str:
    """The SHA-256 of a file as 64 hexadecimal digits, without its content in memory.

    Raises:
        OSError: The file cannot be read.
    """
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def _parts(tensors: Mapping[str, Tensor]) -> Iterator[bytes | memoryview]:
    """The content of the file: size of the header, header, and tensors."""
    header = {}
    end = 0
    names = sorted(tensors, key=lambda name: (-_ORDER[tensors[name].dtype], name))
    for name in names:
        tensor = tensors[name]
        begin = end
        end += tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    yield len(text).to_bytes(8, "little")
    yield text
    for name in names:
        if tensors[name].numel():
            yield tensors[name].reshape(-1).view(torch.uint8).numpy().data
