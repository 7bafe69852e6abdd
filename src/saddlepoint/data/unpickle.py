"""Reads the arrays in CIFAR's Python pickles without letting the file run anything.

A pickle is a program: it names functions and has them called. Here every name resolves to one of a few stand-ins below,
which only rebuild arrays of numbers from bytes; any other name is refused. numpy's own unpickling is not used either.
"""

from __future__ import annotations

import io
import math
import pickle
from typing import Any

import numpy as np

from saddlepoint.data.record import Array, DataError

_NUMBERS = frozenset({"u1", "i1", "i2", "i4", "i8", "u2", "u4", "u8", "f4", "f8"})


def unpickle_arrays(content: bytes, source: str) -> dict[str, Any]:
    """The dictionary in a pickle of lists, numbers, strings and numpy arrays of numbers; keys become `str`."""
    try:
        loaded = _Unpickler(io.BytesIO(content), encoding="bytes").load()
    except DataError as error:
        raise DataError(f"{source}: {error}") from None
    except Exception as error:  # a damaged pickle can raise anything
        raise DataError(
            f"{source} is not a whole pickle ({type(error).__name__}: {error}). Get the file again."
        ) from error
    if not isinstance(loaded, dict):
        raise DataError(f"{source}: expected a pickled dictionary, found {type(loaded).__name__}.")
    return {
        _text(key): value.values if isinstance(value, _Array) else value
        for key, value in loaded.items()
    }


class _Dtype:
    """Stands in for numpy.dtype: a number's kind, then its byte order."""

    def __init__(self, code: str | bytes, *_: object) -> None:
        if _text(code) not in _NUMBERS:
            raise DataError(
                f"expected arrays of numbers, found dtype {code!r}. This is not a CIFAR file."
            )
        self.dtype = np.dtype(_text(code))

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        if _text(state[1]) == ">":
            self.dtype = self.dtype.newbyteorder(">")


class _Array:
    """Stands in for numpy.ndarray: made empty, then filled from (version, shape, dtype, column order, bytes)."""

    values: Array

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, kind, by_column, raw = state
        self.values = _filled(raw, kind, shape, "F" if by_column else "C")


def _reconstruct(*_: object) -> _Array:
    return _Array()


def _from_buffer(raw: bytes, kind: _Dtype, shape: tuple[int, ...], order: str) -> _Array:
    array = _Array()
    array.values = _filled(raw, kind, shape, order)
    return array


def _encode(text: str, encoding: str) -> bytes:
    """Python 3 writes bytes into old pickle protocols as latin-1 text."""
    if encoding != "latin1":
        raise DataError(f"refused to decode text as {encoding!r}.")
    return text.encode("latin1")


def _filled(raw: bytes, kind: _Dtype, shape: tuple[int, ...], order: str) -> Array:
    if len(raw) != math.prod(shape) * kind.dtype.itemsize:
        raise DataError(
            f"an array declares {shape} of {kind.dtype} and holds {len(raw)} bytes. Get the file again."
        )
    return np.frombuffer(raw, kind.dtype).reshape(shape, order="F" if order == "F" else "C")


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
                f"refused: the pickle asks for {module}.{name}, and CIFAR needs only numpy arrays. Do not use this "
                "file; pull the data again."
            )
        return _ALLOWED[module, name]


def _text(word: str | bytes) -> str:
    return word.decode("latin1") if isinstance(word, bytes) else str(word)
