"""Peak memory of a computation."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def peak_bytes(compute: Callable[[], object]) -> int:
    """Return the largest number of bytes in tensors created by `compute` that exist together.

    Tensors that exist before do not count.
    """
    with _MemoryCounter() as counter:
        compute()
    return int(counter.peak)


class _MemoryCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of new tensor storages until they are freed."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = 0
        self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        leaves = tree_leaves((args, kwargs))
        inputs = {_storage_id(leaf) for leaf in leaves if isinstance(leaf, Tensor)}
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor) and _storage_id(tensor) not in self._known | inputs:
                self._add(tensor.untyped_storage(), _storage_id(tensor))
        return out

    def _add(self, storage: torch.UntypedStorage, key: int) -> None:
        size = storage.nbytes()
        self._known.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._remove, key, size)

    def _remove(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size


def _storage_id(tensor: Tensor) -> int:
    """Identify the storage of a tensor; views of one storage have the same number."""
    return int(tensor.untyped_storage()._cdata)
