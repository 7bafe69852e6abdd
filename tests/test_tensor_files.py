"""Files of tensors are those of safetensors, written without a second copy in memory."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import torch
from safetensors.torch import save

from saddlepoint.atomic import sha256_hex
from saddlepoint.tensor_files import file_sha256, write_tensors

KINDS = (
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.float16,
    torch.bfloat16,
    torch.int32,
    torch.float32,
    torch.float64,
    torch.int64,
)


def test_files_have_the_bytes_of_safetensors(tmp_path: Path) -> None:
    tensors = {f"z{k}": (torch.arange(7) % 2).to(kind) for k, kind in enumerate(KINDS)}
    tensors |= {"größe": torch.rand(3, 5).T, "a": torch.rand(2, 2), "none": torch.zeros(4, 0)}
    expected = save({name: tensor.contiguous() for name, tensor in tensors.items()})
    path = tmp_path / "points.safetensors"
    assert write_tensors(path, tensors, sync=True) == sha256_hex(expected) == file_sha256(path)
    assert path.read_bytes() == expected


def test_writing_needs_no_copy_of_the_tensors(tmp_path: Path) -> None:
    tensors = {"points": torch.rand(4_000_000)}
    tracemalloc.start()
    write_tensors(tmp_path / "points.safetensors", tensors)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000
