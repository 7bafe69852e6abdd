"""Moves the files of finished cells into one archive per folder of cells."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from saddlepoint.runs.gc import check_idle
from saddlepoint.runs.own_files import DIAGNOSTICS, LOCKS, lock_files, loose_cell_files
from saddlepoint.runs.store import LARGEST_CELL, Store, StoreError


@dataclass(frozen=True)
class Compacted:
    """What a run folder was before and is now."""

    cells: int  # cells and diagnostics that were moved
    files_before: int
    files: int
    bytes_before: int
    bytes: int


def compact(folder: Path) -> Compacted:
    """Move the files of all cells of a run into `cells.zip`.

    Bytes and names of the files stay the same, so the manifest and its signature stay valid. The
    run can be verified, replayed and resumed as before.

    Args:
        folder: The folder of the run.

    Raises:
        StoreError: The folder contains no run, a process is computing cells of it, or a cell is
            damaged.
    """
    store = Store(folder)
    store.run()
    diagnostics = Store(folder / DIAGNOSTICS)
    check_idle(folder, (store, diagnostics))
    before = _sizes(folder)
    cells = sum(_moved(one) for one in (store, diagnostics))
    for one in (store, diagnostics):
        store.remove(lock_files(one.folder / LOCKS))
    after = _sizes(folder)
    return Compacted(cells, len(before), len(after), sum(before), sum(after))


def _moved(store: Store) -> int:
    """Move all cells of a folder; returns how many were files of their own."""
    loose = loose_cell_files(store.cells)
    own = [key for key in store.keys() if f"{key}.json" in loose]  # noqa: SIM118
    if not own:
        return 0
    names = [f"{key}.{end}" for key in store.keys() for end in ("json", "safetensors")]  # noqa: SIM118
    for key in own:
        store.check(key)
    store.write_archive((name, partial(store.cell_file, name)) for name in names)
    for name, path in loose.items():
        if name not in names:
            continue  # tensors without a record
        if store.archive.read(name, LARGEST_CELL) != path.read_bytes():
            raise StoreError(f"{path} is not in {store.archive.path} as it was. It is kept.")
        store.remove([path])
    return len(own)


def _sizes(folder: Path) -> list[int]:
    """The size of every file in a folder."""
    return [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
