"""Reads files that others may have changed: limits, types, and one form of error.

A folder that was copied from elsewhere may contain anything. Every JSON file of a run is read
here: links are rejected, size and depth are limited, and the content is checked by a pydantic model
before any other code sees it.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from saddlepoint.phrases import count

LARGEST = 256 * 2**20  # bytes of a JSON file: a record of a million images has less
DEEPEST = 100  # nested lists and objects
_SHOWN = 60  # characters of a value in a message


class ReadError(ValueError):
    """A file cannot be read. The message names file, field, what was expected and what is there."""

    def __init__(self, file: str, field: str, expected: str, found: str) -> None:
        place = f"{file}, field {field}" if field else file
        super().__init__(f"{place}: expected {expected}, found {found}")
        self.file = file
        self.field = field
        self.expected = expected
        self.found = found


class Fields(BaseModel):
    """Fields of a JSON object that this version reads; others are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)


def read_bytes(path: Path, largest: int = LARGEST) -> bytes:
    """The content of a regular file.

    Raises:
        ReadError: It is a link, no regular file, or too large.
        OSError: It cannot be opened.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if path.is_symlink():
            raise ReadError(str(path), "", "a file", "a link to another place") from None
        raise error
    about = os.fstat(descriptor)
    if not stat.S_ISREG(about.st_mode) or about.st_size > largest:
        os.close(descriptor)
        if not stat.S_ISREG(about.st_mode):
            raise ReadError(str(path), "", "a file", "a folder or a device")
        size = count(about.st_size, "byte")
        raise ReadError(str(path), "", f"at most {count(largest, 'byte')}", size)
    with os.fdopen(descriptor, "rb") as file:
        return file.read()


def json_object(content: bytes | str, place: str) -> dict[str, Any]:
    """The JSON object in a text.

    Args:
        content: The text, or its bytes in UTF-8.
        place: Where it is from, for messages.

    Raises:
        ReadError: It is not valid JSON, no object, or nested too deeply.
    """
    try:
        text = content.decode() if isinstance(content, bytes) else content
        value = json.loads(text)
    except RecursionError:
        raise ReadError(place, "", f"at most {DEEPEST} nested levels", "more") from None
    except UnicodeDecodeError as error:
        raise ReadError(place, "", "text in UTF-8", f"byte {error.start}: {error.reason}") from None
    except ValueError as error:
        raise ReadError(place, "", "JSON", str(error)) from None
    if not isinstance(value, dict):
        raise ReadError(place, "", "a JSON object", shown(value))
    if _depth(value) > DEEPEST:
        raise ReadError(place, "", f"at most {DEEPEST} nested levels", "more")
    return value


def check(values: Mapping[str, Any], model: type[BaseModel], place: str) -> None:
    """Check the fields of a JSON object.

    Raises:
        ReadError: A field is missing, has another type, or is out of range.
    """
    try:
        # From JSON, so that lists are accepted for tuples and texts for enumerations.
        model.model_validate_json(json.dumps(values))
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        message = str(first["msg"])
        expected = f"{message[:1].lower()}{message[1:]}".removeprefix("input should be ")
        if first["type"] == "missing":
            raise ReadError(place, field, "a value", "none") from None
        raise ReadError(place, field, expected, shown(first["input"])) from None


def shown(value: object) -> str:
    """A value as text that is short and has no control characters."""
    text = json.dumps(value, default=str)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _depth(value: object) -> int:
    """Nested levels of lists and objects, counted without recursion."""
    depth = 0
    level = [value]
    while level:
        depth += 1
        children: list[object] = []
        for one in level:
            if isinstance(one, dict):
                children += one.values()
            elif isinstance(one, list):
                children += one
        level = children
    return depth
