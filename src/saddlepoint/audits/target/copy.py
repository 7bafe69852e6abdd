"""Copies of targets, so that probes do not change the user's object."""

from __future__ import annotations

import copy
from typing import Any, TypeVar

from torch import nn

T = TypeVar("T")


def copy_target(target: T) -> T:
    """A deep copy of a target.

    Attributes of a module that cannot be copied (a lock, a stream, a tensor with a graph) are
    shared with the original.

    Raises:
        Exception: whatever the target raises if it cannot be copied even so.
    """
    try:
        return copy.deepcopy(target)
    except Exception:  # user classes may raise anything
        if not isinstance(target, nn.Module):
            raise
    return copy.deepcopy(target, _uncopyable_parts(target))


def _uncopyable_parts(net: nn.Module) -> dict[int, Any]:
    """A `deepcopy` memo that maps each attribute that cannot be copied to itself."""
    attributes = [
        value
        for module in net.modules()
        for name, value in vars(module).items()
        if name != "_modules"
    ]
    # Dictionaries are checked entry by entry. Parameters and buffers are such entries, and must not
    # be shared because another entry cannot be copied.
    parts: list[Any] = []
    for value in attributes:
        parts += value.values() if isinstance(value, dict) else (value,)
    return {id(part): part for part in parts if not _copyable(part, net)}


def _copyable(part: object, net: nn.Module) -> bool:
    """Whether an attribute can be copied; layers of the net that it refers to are not copied."""
    try:
        copy.deepcopy(part, {id(module): module for module in net.modules()})
    except Exception:
        return False
    return True
