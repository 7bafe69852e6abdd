"""Copies of targets, so that nothing that is asked leaves a mark."""

from __future__ import annotations

import copy
from typing import Any, TypeVar

from torch import nn

T = TypeVar("T")


def copied(target: T) -> T:
    """A deep copy; what a module holds that cannot be copied (a lock, a stream, a tensor with its graph) is shared with it.

    A target that cannot be copied even so raises what its copying raises.
    """
    try:
        return copy.deepcopy(target)
    except Exception:  # whatever a user's class raises
        if not isinstance(target, nn.Module):
            raise
    return copy.deepcopy(target, _shared(target))


def _shared(net: nn.Module) -> dict[int, Any]:
    """A memo in which what cannot be copied stands for itself."""
    held = [
        value
        for module in net.modules()
        for name, value in vars(module).items()
        if name != "_modules"
    ]
    # Parameters and buffers are looked at one by one: they are all that must not be shared.
    parts = [
        part for value in held for part in (value.values() if isinstance(value, dict) else (value,))
    ]
    return {id(part): part for part in parts if not _copyable(part, net)}


def _copyable(part: object, net: nn.Module) -> bool:
    """Apart from the layers of the net, to which hooks and helpers may refer back."""
    try:
        copy.deepcopy(part, {id(module): module for module in net.modules()})
    except Exception:
        return False
    return True
