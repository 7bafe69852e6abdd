"""Objects that the code of a network can reach: attributes, closures, and globals that it names."""

from __future__ import annotations

import functools
import random
import sys
import types
import weakref
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy
import torch
from torch import Tensor, nn

_MOST = 20_000  # objects; a larger structure is data
_MOST_ENTRIES = 1_000  # of one container
# Code of these packages is not searched: it has no state of a user's network.
_LIBRARIES = {
    *sys.stdlib_module_names,
    "IPython",
    "_pytest",
    "click",
    "huggingface_hub",
    "hypothesis",
    "matplotlib",
    "numpy",
    "pandas",
    "pluggy",
    "pydantic",
    "pytest",
    "ray",
    "rich",
    "saddlepoint",
    "scipy",
    "sklearn",
    "timm",
    "torch",
    "torchvision",
    "transformers",
    "typer",
}
# Parts of this package with code of networks.
_NETWORKS = ("saddlepoint.zoo", "saddlepoint.selftests", "saddlepoint.papers")
_LEAVES = (Tensor, numpy.ndarray, str, bytes, int, float, complex, type(None), torch.dtype)
# They are yielded, but nothing is looked for inside of them.
_CLOSED = (torch.Generator, numpy.random.Generator, numpy.random.RandomState, random.Random)
# Attributes of every module. Most of them are empty.
_STANDARD = frozenset(vars(nn.Module()))


class Reached(NamedTuple):
    """An object, and where it was found."""

    place: str  # attributes and names that lead to it
    value: Any


def reachable(root: object, place: str = "") -> Iterator[Reached]:
    """Every object that the code of `root` can reach, each once.

    Attributes and entries of containers are followed, cells and default arguments of functions,
    and those globals that a function names. Tensors, arrays and code of libraries are not.

    Args:
        root: a network, a function or any other object.
        place: the name of the root; default: empty.
    """
    pending = deque([Reached(place, root)])
    seen: dict[int, object] = {}  # keeps the objects, so that no id is used twice
    while pending and len(seen) < _MOST:
        reached = pending.popleft()
        if id(reached.value) in seen:
            continue
        seen[id(reached.value)] = reached.value
        yield reached
        for name, value in children(reached.value):
            if id(value) not in seen and not isinstance(value, _LEAVES):
                pending.append(Reached(f"{reached.place}.{name}".strip("."), value))


def children(value: Any) -> Iterator[tuple[str, object]]:
    """The objects that an object refers to, by name.

    Args:
        value: any object.
    """
    match value:
        case dict():
            # Subclasses may import or create what they return: their own methods are not called.
            entries = list(dict.items(value))[:_MOST_ENTRIES]
            yield from ((str(key)[:40], one) for key, one in entries)
        case list() | tuple() | set() | frozenset() | deque():
            yield from ((str(k), one) for k, one in enumerate(list(value)[:_MOST_ENTRIES]))
        case functools.partial():
            yield from (("func", value.func), ("args", value.args), ("keywords", value.keywords))
        case types.MethodType():
            yield from (("self", value.__self__), (value.__name__, value.__func__))
        case types.BuiltinMethodType():
            yield "self", value.__self__
        case types.FunctionType():
            yield from _of_function(value)
        case staticmethod() | classmethod():
            yield value.__func__.__name__, value.__func__
        case property():
            yield "get", value.fget
        case weakref.ref():
            yield "reference", value()
        case type():
            yield from _of_class(value)
        case types.ModuleType():
            return
        case _:
            yield from _of_object(value)


def _of_object(value: Any) -> Iterator[tuple[str, object]]:
    if isinstance(value, _CLOSED):
        return
    wrapped = getattr(value, "__wrapped__", None)  # a function behind functools.lru_cache
    if isinstance(wrapped, types.FunctionType):
        yield "function", wrapped
    yield from _attributes(value)
    for one in type(value).__mro__:
        if not _of_library(one):
            yield f"class {one.__name__}", one
        elif isinstance(value, nn.Module) and not is_foreign(one):
            yield from _of_class(one, own=True)


def _attributes(value: Any) -> Iterator[tuple[str, object]]:
    """Attributes of an object. The dictionaries of a module are no part of the name."""
    attributes = list(getattr(value, "__dict__", {}).items())
    if isinstance(value, nn.Module):
        for name, inner in attributes:
            if name == "_modules":
                yield from inner.items()
            elif name not in ("_parameters", "_buffers") and (name not in _STANDARD or inner):
                yield name, inner
        return
    yield from attributes
    for one in type(value).__mro__:
        slots = one.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if hasattr(value, name) and not name.startswith("__"):
                yield name, getattr(value, name)


def _of_class(kind: type, *, own: bool = False) -> Iterator[tuple[str, object]]:
    """Methods and class attributes. A class of a library has none, unless `own` is set."""
    if own or not _of_library(kind):
        for name, inner in list(vars(kind).items()):
            if not (name.startswith("__") and name not in ("__call__", "__init__")):
                yield name, inner


def _of_function(function: types.FunctionType) -> Iterator[tuple[str, object]]:
    """Cells, default arguments, and globals that the code of a function names."""
    if is_foreign(function):
        return
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # the variable is not assigned yet
            continue
    yield "defaults", (function.__defaults__, function.__kwdefaults__)
    yield "attributes", vars(function)
    names = set(_names(function.__code__))
    for name in sorted(names & function.__globals__.keys()):
        value = function.__globals__[name]
        if not isinstance(value, types.ModuleType):
            yield name, value
        elif not _of_library(value):
            for inner in sorted(names & vars(value).keys()):
                yield f"{name}.{inner}", vars(value)[inner]


def _names(code: types.CodeType) -> Iterator[str]:
    """Names of globals and attributes in a function and in the functions inside of it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _module(value: Any) -> str:
    return str(value.__name__ if isinstance(value, types.ModuleType) else value.__module__)


def _of_library(value: Any) -> bool:
    return _module(value).partition(".")[0] in _LIBRARIES


def is_foreign(value: Any) -> bool:
    """Whether it belongs to a library, and not to the networks of this package."""
    return _of_library(value) and not _module(value).startswith(_NETWORKS)
