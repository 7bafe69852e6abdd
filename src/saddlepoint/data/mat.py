"""Numeric arrays of a MATLAB file, version 5.

SciPy has a reader as well, but some damaged files crash the process inside of it.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from saddlepoint.data.record import Array
from saddlepoint.phrases import count

_HEADER = 128  # bytes
_MATRIX = 14
_COMPRESSED = 15
# NumPy types of stored numbers, and of the classes of arrays.
_STORED = {
    1: "i1",
    2: "u1",
    3: "i2",
    4: "u2",
    5: "i4",
    6: "u4",
    7: "f4",
    9: "f8",
    12: "i8",
    13: "u8",
}
_CLASSES = {
    6: "f8",
    7: "f4",
    8: "i1",
    9: "u1",
    10: "i2",
    11: "u2",
    12: "i4",
    13: "u4",
    14: "i8",
    15: "u8",
}
_MOST_BYTES = 2**31  # of an unpacked array; the largest file of SVHN has 1.6 GB
_COMPLEX = 0x0800


class MatError(ValueError):
    """The bytes are not a whole file of this format."""


class _Element(NamedTuple):
    kind: int
    data: memoryview


def read_arrays(content: bytes) -> dict[str, Array]:
    """The real numeric arrays of a file by name; variables of other kinds are left out.

    Args:
        content: the bytes of the file.

    Raises:
        MatError: they are not a whole MATLAB file of version 5.
    """
    order = {b"IM": "<", b"MI": ">"}.get(content[126:_HEADER])
    if order is None or struct.unpack(f"{order}H", content[124:126]) != (0x0100,):
        raise MatError("expected the header of a MATLAB file of version 5")
    found = {}
    for element in _elements(memoryview(content)[_HEADER:], order):
        unpacked = element
        if element.kind == _COMPRESSED:
            unpacked = _unpacked(element.data, order)
        named = _array(unpacked.data, order) if unpacked.kind == _MATRIX else None
        if named is not None:
            found[named[0]] = named[1]
    return found


def _elements(data: memoryview, order: str) -> Iterator[_Element]:
    """The elements, one after another."""
    at = 0
    while at < len(data):
        if len(data) - at < 8:
            raise MatError("it ends inside of an element")
        kind, size = struct.unpack_from(f"{order}II", data, at)
        begin = at + 8
        if kind >> 16:  # a short element: size and kind in one number, then at most four bytes
            kind, size = kind & 0xFFFF, kind >> 16
            begin = at + 4
            if size > 4:
                raise MatError("a short element has more than 4 bytes")
        if size > len(data) - begin:
            raise MatError(f"an element has {count(size, 'byte')}, {len(data) - begin} are left")
        yield _Element(kind, data[begin : begin + size])
        end = begin + size
        at = end if kind == _COMPRESSED else -(-end // 8) * 8


def _unpacked(data: memoryview, order: str) -> _Element:
    """The one element inside of compressed bytes, unpacked no further than it declares."""
    packed = zlib.decompressobj()
    try:
        tag = packed.decompress(data, 8)
        if len(tag) < 8:
            raise MatError("it ends inside of a compressed element")
        kind, size = struct.unpack(f"{order}II", tag)
        if size > _MOST_BYTES:
            raise MatError(f"an array has {count(size, 'byte')}, at most {_MOST_BYTES} are read")
        content = packed.decompress(packed.unconsumed_tail, size) if size else b""
    except zlib.error as error:
        raise MatError(str(error)) from error
    if len(content) < size:
        raise MatError(f"a compressed element has {count(size, 'byte')}, {len(content)} were found")
    return _Element(kind, memoryview(content))


def _array(data: memoryview, order: str) -> tuple[str, Array] | None:
    """Name and values of an array; None if it has other values than real numbers."""
    parts = list(_elements(data, order))
    if len(parts) < 3 or len(parts[0].data) != 8:
        raise MatError("an array without flags, shape and name")
    (flags, _), shape = (_numbers(part, order).tolist() for part in parts[:2])
    kind = _CLASSES.get(flags & 0xFF)
    if kind is None or flags & _COMPLEX:
        return None
    if len(parts) != 4 or any(size < 0 for size in shape):
        raise MatError(f"an array of shape {shape} with {count(len(parts) - 3, 'part')}")
    values = _numbers(parts[3], order)
    if math.prod(shape) != len(values):
        raise MatError(f"an array of shape {shape} with {len(values)} numbers")
    name = bytes(parts[2].data).decode("latin-1")
    return name, values.astype(kind).reshape(shape, order="F")


def _numbers(element: _Element, order: str) -> Array:
    kind = _STORED.get(element.kind)
    if kind is None or len(element.data) % int(kind[1]):
        raise MatError(f"numbers of kind {element.kind} in {count(len(element.data), 'byte')}")
    return np.frombuffer(element.data, f"{order}{kind}")
