"""Memory of a computation: bytes saved for a backward pass, and the peak of live tensors."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def saved_bytes(compute: Callable[[], object]) -> int:
    """Bytes of the storages that autograd keeps while `compute` runs, each counted once."""
    sizes: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        compute()
    return sum(sizes.values())


class PeakBytes(TorchDispatchMode):
    """Measures the most bytes of tensors that were created in this block and alive at once."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self._alive: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        inputs = {
            t.untyped_storage()._cdata for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)
        }
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor):
                self._count(tensor.untyped_storage(), inputs)
        return out

    def _count(self, storage: torch.UntypedStorage, inputs: set[int]) -> None:
        key = storage._cdata
        size = storage.nbytes()
        if key in self._alive or key in inputs:  # a view of an existing storage
            return
        self._alive.add(key)
        self.now += size
        self.most = max(self.most, self.now)
        weakref.finalize(storage, self._freed, key, size)

    def _freed(self, key: int, size: int) -> None:
        self._alive.discard(key)
        self.now -= size


def peak_bytes(compute: Callable[[], object]) -> int:
    """The most bytes of tensors that `compute` creates and keeps alive at once."""
    with PeakBytes() as peak:
        compute()
    return peak.most
