"""Bytes that a computation needs at once."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def most_bytes(compute: Callable[[], object]) -> int:
    """The most bytes in tensors that `compute` made and that were alive together; what it was given does not count."""
    with _Living() as living:
        compute()
    return int(living.most)


class _Living(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.most = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {id_of(t) for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor) and id_of(tensor) not in self._known | given:
                self._born(tensor.untyped_storage(), id_of(tensor))
        return out

    def _born(self, storage: torch.UntypedStorage, key: int) -> None:
        size = storage.nbytes()
        self._known.add(key)
        self.now += size
        self.most = max(self.most, self.now)
        weakref.finalize(storage, self._gone, key, size)

    def _gone(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size


def id_of(tensor: Tensor) -> int:
    """Which memory a tensor looks at."""
    return int(tensor.untyped_storage()._cdata)
