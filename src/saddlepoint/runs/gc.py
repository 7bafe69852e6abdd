"""Removes files of a run folder that are no longer used.

These are cells of earlier requests, trials, incomplete files of killed processes, and locks that
no process holds.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from saddlepoint.runs.store import Store, StoreError

_TEMPORARY = re.compile(
    r"\.(run\.json|spec\.toml|audit\.json|points\.safetensors|game\.json|game\.safetensors)\.\d+"
)


@dataclass(frozen=True)
class Freed:
    """What was removed, or would be removed by the same call without `dry_run`."""

    cells: int  # of other requests
    trials: int  # small trials, which are needed only if the same request is made again
    torn: int  # temporary files of killed processes, and tensors without a record
    locks: int  # that no process holds
    bytes: int  # total size of the files
    removed: bool  # False: a dry run


def collect_garbage(folder: Path, *, dry_run: bool = False) -> Freed:
    """Remove the files of a run that its current request does not use.

    The ledger is kept, because it is the history of the run.

    Args:
        folder: The folder of the run.
        dry_run: Only count the files.

    Raises:
        StoreError: The folder contains no run, or a process is computing cells of it.
    """
    store = Store(folder)
    used = set(store.run()["cells"])
    stores = (store, Store(folder / "trials"))
    running = [lock.name for each in stores for lock in _locks(each) if each.busy(lock.name)]
    if running:
        raise StoreError(
            f"{len(running)} cells of {folder} are being computed. Wait until that run has ended, "
            "then try again."
        )
    cells = sorted(set(store.keys()) - used)
    torn = [
        *store.torn(),
        *_orphans(store),
        *(path for path in sorted(folder.iterdir()) if _TEMPORARY.fullmatch(path.name)),
    ]
    locks = [lock for each in stores for lock in _locks(each)]
    trials = sorted((folder / "trials" / "cells").glob("*"))
    unused = [
        *trials,
        *(store.cells / f"{key}{end}" for key in cells for end in (".json", ".safetensors")),
        *torn,
        *locks,
    ]
    size = sum(path.stat().st_size for path in unused if path.is_file())
    if not dry_run:
        store.remove(unused)
    return Freed(
        cells=len(cells),
        trials=sum(path.suffix == ".json" for path in trials),
        torn=len(torn),
        locks=len(locks),
        bytes=size,
        removed=not dry_run,
    )


def _locks(store: Store) -> list[Path]:
    return sorted(path for path in (store.folder / "locks").glob("*") if path.is_file())


def _orphans(store: Store) -> list[Path]:
    """Tensors without a record: the process was killed before it wrote the record."""
    return [
        path for path in sorted(store.cells.glob("[!.]*.safetensors")) if not store.has(path.stem)
    ]
