"""Data from the user's own function, named `package.module:function` or `file.py:function`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor

from saddlepoint.data.record import Array, Data, DataError, Split, from_arrays, numbered
from saddlepoint.locate import LocateError, locate, told


def load_factory(spec: str, split: Split, n: int | None) -> Data:
    """What the function returns: `Data`, or images x [N, C, H, W] (uint8, or float in 0..1) and labels y [N].

    It is called with `split=` and `n=` if it takes arguments of these names; without them it is called with nothing,
    and returns the same for either split.
    """
    try:
        factory = locate(spec)
    except LocateError as error:
        raise DataError(str(error)) from error
    if not callable(factory):
        raise DataError(
            f"{spec} is {type(factory).__name__}, expected a function that returns (x, y) or Data."
        )
    accepted = _accepted(factory, {"split": split, "n": n})
    try:
        made = factory(**accepted)
    except Exception as error:
        raise DataError(f"Calling {spec} raised {told(error)}.") from error
    name = spec.rpartition(":")[2]
    if isinstance(made, Data):
        return made if n is None else made.take(min(n, len(made)))
    if not isinstance(made, tuple | list) or len(made) != 2:
        raise DataError(f"{spec} returned {type(made).__name__}, expected (x, y) or Data.")
    x, y = (_array(part) for part in made)
    if x.ndim != 4 or len(x) != len(y):
        raise DataError(
            f"{spec} returned x {list(x.shape)} and y {list(y.shape)}, expected [N, C, H, W] and [N]."
        )
    return from_arrays(name, x[:n], y[:n], numbered(y))


def _accepted(factory: Callable[..., Any], offered: dict[str, object]) -> dict[str, object]:
    parameters = inspect.signature(factory).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return offered
    named = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    return {name: value for name, value in offered.items() if name in named}


def _array(values: object) -> Array:
    if not isinstance(values, Tensor):
        return np.asarray(values)
    whole = values.detach().cpu()
    return (whole.float() if whole.is_floating_point() else whole).numpy()  # numpy has no bfloat16
