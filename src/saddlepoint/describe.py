"""Any value made of frozen dataclasses, functions and numbers as plain data: what a record keeps, and what tells two runs apart."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import Field, fields, is_dataclass
from numbers import Real
from typing import Any

# `field(default=..., metadata=TACIT)` is described only where it is not at its default: records from before it was there stay true.
OMIT_DEFAULT = {"tacit": True}

Plain = str | int | float | bool | None | list["Plain"] | dict[str, "Plain"]


def describe(value: object) -> Plain:
    """JSON values; a dataclass is its class and all its fields but the tacit ones at their default, a function its name."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no infinity
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Real):  # numpy's numbers are none of Python's
        return describe(float(value))
    if is_dataclass(value) and not isinstance(value, type):
        told = [f for f in fields(value) if not _untold(f, getattr(value, f.name))]
        return {
            "kind": type(value).__name__,
            **{f.name: describe(getattr(value, f.name)) for f in told},
        }
    if isinstance(value, tuple | list):
        return [describe(item) for item in value]
    if isinstance(value, frozenset | set):
        return [str(item) for item in sorted(value)]
    if isinstance(value, Mapping):
        return {str(key): describe(item) for key, item in value.items()}
    return str(getattr(value, "__qualname__", type(value).__qualname__))


def _untold(one: Field[Any], value: object) -> bool:
    return bool(one.metadata.get("tacit")) and value == one.default


def digest(value: object) -> str:
    """SHA-256 of a value's description, in hexadecimal."""
    return hashlib.sha256(json.dumps(describe(value), sort_keys=True).encode()).hexdigest()
