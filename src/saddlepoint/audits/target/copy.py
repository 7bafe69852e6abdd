"""Copies of targets, so that probes do not change the user's object."""

from __future__ import annotations

import copy
import types
import weakref
from typing import Any, TypeVar, cast

from torch import nn

T = TypeVar("T")


def copy_target(target: T) -> T:
    """A deep copy of a target.

    Attributes of a module that cannot be copied (a lock, a stream, a tensor with a graph) are
    shared with the original. Functions inside a module, such as its hooks, refer to the copy where
    they referred to the original.

    Raises:
        Exception: whatever the target raises if it cannot be copied even so.
    """
    memo: dict[int, Any] = {}
    try:
        copied = copy.deepcopy(target, memo)
    except Exception:  # user classes may raise anything
        if not isinstance(target, nn.Module):
            raise
        memo = _uncopyable_parts(target)
        copied = copy.deepcopy(target, memo)
    if isinstance(copied, nn.Module):
        _Rebinding(memo).apply(copied)
    return copied


class _Rebinding:
    """Replaces functions and weak references inside a copy, which `deepcopy` shares.

    Args:
        memo: copies by the id of their originals, from `deepcopy`.
    """

    def __init__(self, memo: dict[int, Any]) -> None:
        self.memo = memo
        self.functions: dict[int, types.FunctionType] = {}

    def apply(self, net: nn.Module) -> None:
        """Replace them in the attributes and hooks of all modules of a copy."""
        for module in net.modules():
            self._entries(vars(module), depth=3)

    def _entries(self, container: dict[Any, Any] | list[Any], depth: int) -> None:
        places = container if isinstance(container, dict) else range(len(container))
        for place in list(places):
            value = container[place]
            if isinstance(value, dict | list) and depth:
                self._entries(value, depth - 1)
            elif isinstance(value, types.FunctionType | weakref.ref):
                new = self._replaced(value)
                if new is not value:
                    container[place] = new

    def _replaced(self, value: Any) -> Any:
        """What the copy must refer to in place of `value`."""
        if id(value) in self.memo:
            return self.memo[id(value)]
        if isinstance(value, weakref.ref):
            original = value()
            copied = self.memo.get(id(original))
            return value if original is None or copied is None else weakref.ref(copied)
        if isinstance(value, types.MethodType):
            owner = self._replaced(value.__self__)
            return value if owner is value.__self__ else types.MethodType(value.__func__, owner)
        if isinstance(value, types.FunctionType) and value.__closure__:
            return self._function(value)
        return value

    def _function(self, function: types.FunctionType) -> types.FunctionType:
        """The function with cells that refer to copies; the same one if no cell does."""
        if id(function) in self.functions:
            return self.functions[id(function)]
        self.functions[id(function)] = function  # a recursive function refers to itself
        cells = []
        changed = False
        for cell in cast(tuple[types.CellType, ...], function.__closure__):
            try:
                content = cell.cell_contents
            except ValueError:  # the variable is not assigned
                cells.append(cell)
                continue
            new = self._replaced(content)
            changed = changed or new is not content
            cells.append(cell if new is content else types.CellType(new))
        if not changed:
            return function
        rebound = types.FunctionType(
            function.__code__,
            function.__globals__,
            function.__name__,
            function.__defaults__,
            tuple(cells),
        )
        rebound.__kwdefaults__ = function.__kwdefaults__
        rebound.__dict__.update(function.__dict__)
        self.functions[id(function)] = rebound
        return rebound


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
