"""Models that use `torch.func`: tensors inside of a transformed function are not observed.

Such tensors (of `vmap`, `grad`, `jvp`) have no storage and no rows of their own, so that most
functions that look at them raise an error.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def outside_transforms(observe: Callable[..., Any]) -> Callable[..., Any]:
    """A `__torch_function__` of a mode that observes no call inside of a transformed function."""

    @functools.wraps(observe)
    def method(mode: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch._C._functorch.peek_interpreter_stack() is not None:
            return func(*args, **(kwargs or {}))
        return observe(mode, func, types, args, kwargs)

    return method


def in_transform(x: Tensor) -> bool:
    """Whether a tensor exists only inside of a transformed function."""
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(x))


def unwrapped(x: Tensor) -> Tensor:
    """The ordinary tensor of a tensor inside of a transformed function."""
    while in_transform(x):
        x = torch._C._functorch.get_unwrapped(x)
    return x
