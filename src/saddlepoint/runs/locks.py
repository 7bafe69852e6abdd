"""Locks of cells: files that the operating system unlocks when a process ends."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any
from weakref import WeakSet

from saddlepoint.runs.store_errors import disk_errors

_open: WeakSet[IO[Any]] = WeakSet()  # lock files of this process


def close_inherited_locks() -> None:
    """Close the lock files of the parent, in a process that was forked: it keeps their locks.

    Otherwise a lock would be held until this process ends as well.
    """
    for file in list(_open):
        file.close()


def is_locked(lock: Path) -> bool:
    """Whether a running process holds a lock."""
    try:
        with lock.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


@contextmanager
def claim(lock: Path) -> Iterator[bool]:
    """Take a lock, and yield whether this process has it.

    The operating system releases the lock when the process ends, even if it is killed.
    """
    with disk_errors(lock.parent.parent):
        lock.parent.mkdir(parents=True, exist_ok=True)
        file = lock.open("w")
        _open.add(file)
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        # Between opening and locking, one process may have removed the file, and another one
        # may have locked a new file of the same name.
        yield _same(file.fileno(), lock)


def _same(descriptor: int, path: Path) -> bool:
    """Whether an open file is the file at a path."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
