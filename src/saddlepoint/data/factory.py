"""Data from a user's function, named `package.module:function` or `file.py:function`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor

from saddlepoint.data.record import Array, Data, DataError, Split, class_numbers, from_arrays
from saddlepoint.locate import LocateError, describe_error, locate


def load_factory(spec: str, split: Split, n: int | None) -> Data:
    """Call the function named by `spec` and return its images and labels.

    The function returns `Data`, or a pair of images x [N, C, H, W] (uint8, or float in [0, 1]) and
    labels y [N]. It is called with `split=` and `n=` if it has parameters of these names. Otherwise
    it is called without them and returns the same data for both splits.

    Args:
        spec: `package.module:function` or `file.py:function`.
        split: "train" or "test".
        n: Number of examples from the start; None returns all.

    Raises:
        DataError: The function cannot be found, raises, or returns something else.
    """
    try:
        factory = locate(spec)
    except LocateError as error:
        raise DataError(str(error)) from error
    if not callable(factory):
        raise DataError(
            f"{spec} is {type(factory).__name__}, expected a function that returns (x, y) or Data."
        )
    arguments = _accepted_arguments(factory, {"split": split, "n": n})
    try:
        returned = factory(**arguments)
    except Exception as error:
        raise DataError(f"Calling {spec} raised {describe_error(error)}.") from error
    if isinstance(returned, Data):
        return returned if n is None else returned.take(min(n, len(returned)))
    if not isinstance(returned, tuple | list) or len(returned) != 2:
        raise DataError(f"{spec} returned {type(returned).__name__}, expected (x, y) or Data.")
    x, y = (_to_array(part) for part in returned)
    if x.ndim != 4 or len(x) != len(y):
        raise DataError(
            f"{spec} returned x {list(x.shape)} and y {list(y.shape)}, "
            "expected [N, C, H, W] and [N]."
        )
    name = spec.rpartition(":")[2]
    return from_arrays(name, x[:n], y[:n], class_numbers(y))


def _accepted_arguments(
    factory: Callable[..., Any], arguments: dict[str, object]
) -> dict[str, object]:
    """The entries of `arguments` that `factory` accepts by keyword."""
    parameters = inspect.signature(factory).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return arguments
    named = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    return {name: value for name, value in arguments.items() if name in named}


def _to_array(values: object) -> Array:
    if not isinstance(values, Tensor):
        return np.asarray(values)
    tensor = values.detach().cpu()
    # NumPy has no bfloat16, so every float type is converted to float32.
    return (tensor.float() if tensor.is_floating_point() else tensor).numpy()
