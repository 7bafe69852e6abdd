"""Converts configuration values to plain JSON data, for records and for hashing.

The values are made of frozen dataclasses, functions, containers and numbers. Two runs are the same
if their descriptions are equal.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import Field, fields, is_dataclass
from numbers import Real
from typing import Any

# `field(default=..., metadata=OMIT_DEFAULT)` leaves the field out of the description while it has
# its default value. Records written before the field existed therefore stay valid.
OMIT_DEFAULT = {"omit_default": True}

PlainValue = str | int | float | bool | None | list["PlainValue"] | dict[str, "PlainValue"]


def describe(value: object) -> PlainValue:
    """Convert a value to JSON data.

    A dataclass becomes a dictionary of its class name (`kind`) and its fields, without fields
    marked `OMIT_DEFAULT` that have their default value. A function becomes its qualified name, a
    set a sorted list, an infinite or NaN number a string.
    """
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no infinity
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Real):  # numpy scalars are not Python numbers
        return describe(float(value))
    if is_dataclass(value) and not isinstance(value, type):
        described = [f for f in fields(value) if not _is_omitted(f, getattr(value, f.name))]
        return {
            "kind": type(value).__name__,
            **{f.name: describe(getattr(value, f.name)) for f in described},
        }
    if isinstance(value, tuple | list):
        return [describe(item) for item in value]
    if isinstance(value, frozenset | set):
        return [str(item) for item in sorted(value)]
    if isinstance(value, Mapping):
        return {str(key): describe(item) for key, item in value.items()}
    return str(getattr(value, "__qualname__", type(value).__qualname__))


def digest(value: object) -> str:
    """SHA-256 of the description of a value, in hexadecimal."""
    return hashlib.sha256(json.dumps(describe(value), sort_keys=True).encode()).hexdigest()


def _is_omitted(one: Field[Any], value: object) -> bool:
    return bool(one.metadata.get("omit_default")) and value == one.default
