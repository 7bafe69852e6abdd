"""Removes files of a run folder that its current request does not use.

These are cells and diagnostics of earlier requests, trials of earlier versions, incomplete files of
killed processes, and locks that no process holds.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from saddlepoint.phrases import agree, count
from saddlepoint.runs.own_files import (
    DIAGNOSTICS,
    LOCKS,
    TRIALS,
    cell_files,
    incomplete_files,
    lock_files,
)
from saddlepoint.runs.store import Store, StoreError


@dataclass(frozen=True)
class Freed:
    """What was removed, or would be removed by the same call without `dry_run`."""

    cells: int  # attack cells of other requests
    diagnostics: int  # diagnostics of other requests, and all trials of earlier versions
    incomplete: int  # temporary files of killed processes, and tensors without a record
    locks: int  # that no process holds
    bytes: int  # total size of the files
    removed: bool  # False: a dry run
    files: tuple[str, ...] = field(default=())  # all of them, relative to the folder of the run


def collect_garbage(folder: Path, *, dry_run: bool = False) -> Freed:
    """Remove the files of a run that its current request does not use.

    Only files with names of the store's own form are removed, and a folder with links is rejected.
    The ledger is kept, because it is the history of the run.

    Args:
        folder: The folder of the run.
        dry_run: Only count the files.

    Raises:
        StoreError: The folder contains no run, or a process is computing cells of it.
    """
    store = Store(folder)
    run = store.run()
    diagnostics = Store(folder / DIAGNOSTICS)
    trials = Store(folder / TRIALS)
    stores = (store, diagnostics, trials)
    check_idle(folder, stores)
    cells = _unused(store, run["cells"])
    measured = [*_unused(diagnostics, run.get("diagnostics", ())), *_unused(trials, ())]
    archived = {each: _archived(each, (*cells, *measured)) for each in stores}
    incomplete = [path for each in stores for path in _incomplete(each)]
    incomplete += incomplete_files(folder)
    locks = [lock for each in stores for lock in lock_files(each.folder / LOCKS)]
    unused = [path.with_suffix(".safetensors") for path in (*cells, *measured)]
    files = [path for path in (*cells, *measured, *unused, *incomplete, *locks) if path.is_file()]
    size = sum(path.stat().st_size for path in files)
    size += sum(each.archived()[name].stored for each in stores for name in archived[each])
    if not dry_run:
        store.remove(files)
        for each in stores:
            each.remove_archived(archived[each])
    return Freed(
        cells=len(cells),
        diagnostics=len(measured),
        incomplete=len(incomplete),
        locks=len(locks),
        bytes=size,
        removed=not dry_run,
        files=(
            *(str(path.relative_to(folder)) for path in files),
            *(
                f"{each.archive.path.relative_to(folder)}/{name}"
                for each in stores
                for name in archived[each]
            ),
        ),
    )


def check_idle(folder: Path, stores: Collection[Store]) -> None:
    """Check that no process computes cells of a run.

    Raises:
        StoreError: One does.
    """
    running = [
        lock
        for each in stores
        for lock in lock_files(each.folder / LOCKS)
        if each.is_locked(lock.name)
    ]
    if running:
        raise StoreError(
            f"{count(len(running), 'cell')} of {folder} {agree(len(running), 'is', 'are')} being "
            "computed. Wait until that run has ended, then try again."
        )


def _unused(store: Store, used: Collection[str]) -> list[Path]:
    """The records of the cells that are not used."""
    keys = sorted(set(store.keys()) - set(used))
    return [store.cells / f"{key}.json" for key in keys]


def _archived(store: Store, records: Collection[Path]) -> list[str]:
    """The names of the files of these cells that are in the archive of a store."""
    keys = {path.stem for path in records if path.parent == store.cells}
    return sorted(name for name in store.archived() if name.partition(".")[0] in keys)


def _incomplete(store: Store) -> list[Path]:
    """Temporary files, and tensors without a record, of processes that were killed."""
    tensors = cell_files(store.cells, "safetensors")
    return [*store.incomplete_files(), *(tensors[key] for key in tensors if not store.has(key))]
