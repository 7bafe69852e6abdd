"""Compares a record with what it should be, field by field."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from typing import Any

from saddlepoint.reading import shown

_NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[-+]?\d+)?")
_EXACT = 1e-9  # relative tolerance for numbers: sums may be rounded differently on other machines
_IN_TEXT = 0.01  # relative tolerance for numbers in texts, which are rounded measurements
_MISSING = "nothing"
_LISTED = 5  # differences in a message

Differing = tuple[str, Any, Any]  # field, recorded value, recomputed value


def plain(value: Any) -> Any:
    """The value as it is read back from a JSON file."""
    return json.loads(json.dumps(value))


def differences(recorded: Any, expected: Any, field: str = "") -> Iterator[Differing]:
    """All fields in which two JSON values differ, each with both values."""
    if isinstance(recorded, Mapping) and isinstance(expected, Mapping):
        for name in dict.fromkeys((*expected, *recorded)):
            place = f"{field}.{name}" if field else str(name)
            values = recorded.get(name, _MISSING), expected.get(name, _MISSING)
            yield from differences(*values, place)
    elif isinstance(recorded, list) and isinstance(expected, list):
        pairs = zip_longest(recorded, expected, fillvalue=_MISSING)
        for k, (one, other) in enumerate(pairs):
            yield from differences(one, other, f"{field}.{k}")
    elif not _same(recorded, expected):
        yield field, recorded, expected


def listed(file: str, found: list[Differing]) -> str:
    """Differences as text: file, field, recorded and recomputed value."""
    lines = [
        f"{file}, {field}: recorded {shown(recorded)}, recomputed {shown(expected)}"
        for field, recorded, expected in found[:_LISTED]
    ]
    more = f"; and {len(found) - _LISTED} more" if len(found) > _LISTED else ""
    return f"{'; '.join(lines)}{more}."


def _same(recorded: Any, expected: Any) -> bool:
    if isinstance(recorded, bool) or isinstance(expected, bool):
        return recorded is expected
    numbers = (int, float)
    if isinstance(recorded, numbers) and isinstance(expected, numbers):
        both_nan = recorded != recorded and expected != expected
        return both_nan or math.isclose(recorded, expected, rel_tol=_EXACT, abs_tol=1e-12)
    if isinstance(recorded, str) and isinstance(expected, str):
        return recorded == expected or _same_but_for_rounding(recorded, expected)
    return bool(recorded == expected)


def _same_but_for_rounding(recorded: str, expected: str) -> bool:
    """Whether two sentences differ only in numbers, and in these by rounding only."""
    if " " not in expected or _NUMBER.split(recorded) != _NUMBER.split(expected):
        return False
    pairs = zip(_NUMBER.findall(recorded), _NUMBER.findall(expected), strict=True)
    return all(math.isclose(float(a), float(b), rel_tol=_IN_TEXT) for a, b in pairs)
