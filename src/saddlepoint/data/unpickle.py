"""Reads the arrays in CIFAR's Python pickles without executing code from the file.

A pickle can name any function and have it called. Here each name resolves to one of the few
replacements below, which only rebuild numeric arrays from bytes. Any other name raises an error.
numpy's own unpickling code is not used either.
"""

from __future__ import annotations

import io
import math
import pickle
from typing import Any

import numpy as np

from saddlepoint.data.record import Array, DataError
from saddlepoint.phrases import count

_NUMERIC_DTYPES = frozenset({"u1", "i1", "i2", "i4", "i8", "u2", "u4", "u8", "f4", "f8"})


def unpickle_arrays(content: bytes, source: str) -> dict[str, Any]:
    """Read a pickled dictionary of lists, numbers, strings and numeric numpy arrays.

    Args:
        content: The pickle.
        source: Name of the file, for error messages.

    Returns:
        The dictionary; its keys are converted to `str`.

    Raises:
        DataError: The pickle is damaged or contains anything else.
    """
    try:
        loaded = _Unpickler(io.BytesIO(content), encoding="bytes").load()
    except DataError as error:
        raise DataError(f"{source}: {error}") from None
    except Exception as error:  # a damaged pickle can raise anything
        raise DataError(
            f"{source} is not a whole pickle ({type(error).__name__}: {error}). Download the "
            "file again."
        ) from error
    if not isinstance(loaded, dict):
        raise DataError(f"{source}: expected a pickled dictionary, found {type(loaded).__name__}.")
    return {
        _text(key): value.values if isinstance(value, _Array) else value
        for key, value in loaded.items()
    }


class _Dtype:
    """Replacement for numpy.dtype: constructed from a type code, then given its byte order."""

    def __init__(self, code: str | bytes, *_: object) -> None:
        if _text(code) not in _NUMERIC_DTYPES:
            raise DataError(
                f"expected numeric arrays, found dtype {code!r}. This is not a CIFAR file."
            )
        self.dtype = np.dtype(_text(code))

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        if _text(state[1]) == ">":
            self.dtype = self.dtype.newbyteorder(">")


class _Array:
    """Replacement for numpy.ndarray.

    It is created empty and then filled from (version, shape, dtype, Fortran order, bytes).
    """

    values: Array

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, fortran_order, raw = state
        self.values = _build_array(raw, dtype, shape, "F" if fortran_order else "C")


def _reconstruct(*_: object) -> _Array:
    return _Array()


def _from_buffer(raw: bytes, dtype: _Dtype, shape: tuple[int, ...], order: str) -> _Array:
    array = _Array()
    array.values = _build_array(raw, dtype, shape, order)
    return array


def _encode(text: str, encoding: str) -> bytes:
    """Replacement for `_codecs.encode`: Python 3 stores bytes as latin-1 text in old protocols."""
    if encoding != "latin1":
        raise DataError(f"text encoding {encoding!r} is not allowed; expected latin1.")
    return text.encode("latin1")


def _build_array(raw: bytes, dtype: _Dtype, shape: tuple[int, ...], order: str) -> Array:
    if len(raw) != math.prod(shape) * dtype.dtype.itemsize:
        raise DataError(
            f"an array declares {shape} of {dtype.dtype} but contains {count(len(raw), 'byte')}. "
            "Download the file again."
        )
    return np.frombuffer(raw, dtype.dtype).reshape(shape, order="F" if order == "F" else "C")


_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy.core.numeric", "_frombuffer"): _from_buffer,
    ("numpy._core.numeric", "_frombuffer"): _from_buffer,
    ("_codecs", "encode"): _encode,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise DataError(
                f"unsafe pickle: it refers to {module}.{name}, but CIFAR files contain only numpy "
                "arrays. Do not use this file; pull the data again."
            )
        return _ALLOWED[module, name]


def _text(word: str | bytes) -> str:
    return word.decode("latin1") if isinstance(word, bytes) else str(word)
