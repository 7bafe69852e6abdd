"""Write files atomically and hash their content. Imports nothing else of this package."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path


def write_atomic(path: Path, content: bytes, *, sync: bool = False) -> None:
    """Write a file completely or not at all.

    The content goes to a temporary file in the same folder, which is then renamed to `path`. Other
    processes see either the old file or the new one. After an error the old file is unchanged and
    the temporary file is removed. A process killed while writing leaves the temporary file
    `.NAME.PID` behind.

    Args:
        path: The file to write. Its folder must exist. An existing file is replaced.
        content: The bytes of the file.
        sync: Flush the file and its folder to disk before returning, so that the file survives a
            power failure. Default: leave the time of writing to the operating system.

    Raises:
        OSError: The file cannot be written.
    """
    write_atomic_by(path, lambda temporary: _write(temporary, content), sync=sync)


def write_atomic_by(path: Path, write: Callable[[Path], object], *, sync: bool = False) -> None:
    """`write_atomic` of a file that a function writes, so that its content need not be in memory.

    Args:
        path: The file to write.
        write: Writes the content to a path. It may be called twice.
        sync: As in `write_atomic`.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        _write_and_sync(temporary, write, sync=sync)
        try:
            temporary.rename(path)
        except FileNotFoundError:
            # Another machine removed it, because it has no process with this number.
            _write_and_sync(temporary, write, sync=sync)
            temporary.rename(path)
        if sync:
            _sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)


def _write_and_sync(path: Path, write: Callable[[Path], object], *, sync: bool) -> None:
    write(path)
    if sync:
        _sync(path)


def sha256_hex(content: bytes) -> str:
    """Return the SHA-256 of the content as 64 hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def _sync(path: Path) -> None:
    """Flush a file or a folder to disk. A rename is part of the folder, not of the file."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
