"""Files that are written completely or not at all, and hashes of their content."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path


def write_atomic(path: Path, content: bytes, *, sync: bool = False) -> None:
    """Write `content` to a temporary file beside `path` and rename it.

    Other processes see the old file or the new one, never a part.

    Args:
        path: the file to write.
        content: all of its bytes.
        sync: wait until the data is on disk, so that it survives a crash of the machine.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        temporary.rename(path)
        if sync:
            _sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def sha256_hex(content: bytes) -> str:
    """SHA-256 in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
