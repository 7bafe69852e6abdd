"""Errors of the store, and what to do about a full or read-only disk."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class StoreError(RuntimeError):
    """The store cannot be read or written. Finished cells are not affected."""


class DamagedError(StoreError):
    """A file is incomplete, or was not written by this package."""


class NewerError(StoreError):
    """A newer version of this package wrote a file, which this version must not replace."""


@contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """Explain what to do about a full or read-only disk."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StoreError(
                f"the disk that holds {folder} is full. All finished cells are kept: free some "
                "space and run the same command again."
            ) from None
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise StoreError(
                f"{folder} cannot be written to ({error.strerror}). All finished cells are kept: "
                "make the folder writable, or copy it and continue there with --out."
            ) from None
        raise
