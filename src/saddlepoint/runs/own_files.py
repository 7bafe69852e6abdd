"""Which files of a run folder are its own, and that none of them is a link.

A run folder may come from someone else. Files are removed only if their name has the form that the
store itself writes, and a folder with links is rejected: `cells` could lead to any place.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

CELLS = "cells"
LOCKS = "locks"
DIAGNOSTICS = "diagnostics"  # folder of measurements: they can be repeated by a verification
TRIALS = "trials"  # folder in which earlier versions stored diagnostics
OWN_FOLDERS = (CELLS, LOCKS, DIAGNOSTICS, TRIALS)
ARCHIVE = "cells.zip"  # files of cells that were compacted
MANIFEST = "manifest.json"
SIGNATURE = "manifest.json.sig"
RECORDS = (  # files of a run beside its cells that other files depend on
    "run.json",
    "spec.toml",
    "audit.json",
    "points.safetensors",
    "game.json",
    "game.safetensors",
    "report.html",
)
OWN_FILES = (*RECORDS, "ledger.jsonl", "live.html", ARCHIVE, MANIFEST, SIGNATURE)

_KEY = re.compile(r"[0-9a-f]{64}")
_CELL_FILE = re.compile(r"([0-9a-f]{64})\.(json|safetensors)")
_INCOMPLETE_CELL = re.compile(r"\.([0-9a-f]{64})\.(?:json|safetensors)\.\d+")
_INCOMPLETE_FILE = re.compile(rf"\.(?:{'|'.join(map(re.escape, OWN_FILES))})\.(\d{{1,9}})")


class LinkError(ValueError):
    """A run folder contains something that is neither a regular file nor a folder."""


def reject_links(folder: Path) -> None:
    """Check that a run folder contains no links, pipes, sockets or devices among its own files.

    Raises:
        LinkError: There is one. The message names it.
    """
    for path in _own_paths(folder):
        if path.is_symlink():
            raise LinkError(
                f"{path} is a link. The files of a run are never links: a command could read, "
                "change or remove files of another folder through it. Remove the link, or copy the "
                "files that it leads to."
            )
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise LinkError(
                f"{path} is a pipe, a socket or a device. The files of a run are regular files: a "
                "command could wait for it forever. Remove it."
            )


def is_key(name: str) -> bool:
    """Whether a name is the key of a cell."""
    return _KEY.fullmatch(name) is not None


def is_cell_file(name: str) -> bool:
    """Whether a name is that of a file of a cell."""
    return _CELL_FILE.fullmatch(name) is not None


def loose_cell_files(folder: Path) -> dict[str, Path]:
    """All files of cells in a folder `cells` by name."""
    return {path.name: path for path in _entries(folder) if is_cell_file(path.name)}


def cell_files(folder: Path, end: str) -> dict[str, Path]:
    """The files of cells in a folder by key, only those with names of the store's own form.

    Args:
        folder: The folder `cells`.
        end: "json" or "safetensors".
    """
    found = {}
    for path in _entries(folder):
        match = _CELL_FILE.fullmatch(path.name)
        if match and match[2] == end and path.is_file():
            found[match[1]] = path
    return found


def incomplete_cells(folder: Path) -> dict[Path, str]:
    """Temporary files of cells in a folder, with the keys of their cells."""
    matches = {path: _INCOMPLETE_CELL.fullmatch(path.name) for path in _entries(folder)}
    return {path: match[1] for path, match in matches.items() if match}


def incomplete_files(folder: Path) -> list[Path]:
    """Temporary files of the records in a run folder whose processes do not run any more."""
    matches = {path: _INCOMPLETE_FILE.fullmatch(path.name) for path in _entries(folder)}
    return [path for path, match in matches.items() if match and not _is_running(int(match[1]))]


def _is_running(pid: int) -> bool:
    """Whether a process with this number runs on this machine."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True  # a process of another user
    except (ProcessLookupError, OverflowError):
        return False
    return pid != os.getpid()  # this process writes one file at a time


def lock_files(folder: Path) -> list[Path]:
    """The locks in a folder `locks`."""
    return [path for path in _entries(folder) if is_key(path.name)]


def _own_paths(folder: Path) -> Iterator[Path]:
    """All paths in a run folder that may be its own."""
    for path in _entries(folder):
        if path.name in OWN_FILES:
            yield path
        elif path.name in OWN_FOLDERS:
            yield path
            if not path.is_symlink():
                yield from _below(path)


def _below(folder: Path) -> Iterator[Path]:
    for place, folders, files in os.walk(folder):
        yield from (Path(place) / name for name in (*folders, *files))


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
