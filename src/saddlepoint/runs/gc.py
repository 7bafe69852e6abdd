"""What a run folder holds in vain: cells of earlier requests, trials, torn files, locks that nobody holds."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from saddlepoint.runs.store import Store, StoreError

_TORN = re.compile(
    r"\.(run\.json|spec\.toml|audit\.json|points\.safetensors|game\.json|game\.safetensors)\.\d+"
)


@dataclass(frozen=True)
class Freed:
    """What was removed, or would be."""

    cells: int
    trials: int  # which only a request that is made again would look for
    torn: int  # temporary files of killed processes, and tensors without a record
    locks: int
    bytes: int
    removed: bool  # False: a dry run


def tidy(folder: Path, *, dry_run: bool = False) -> Freed:
    """Remove what the present request does not use. The ledger stays: it is history."""
    store = Store(folder)
    wanted = set(store.run()["cells"])
    kept = (store, Store(folder / "trials"))
    at_work = [lock.name for each in kept for lock in _locks(each) if each.busy(lock.name)]
    if at_work:
        raise StoreError(
            f"{len(at_work)} cells of {folder} are being computed. Wait until that run has ended, then try again."
        )
    cells = sorted(set(store.keys()) - wanted)
    torn = [
        *store.torn(),
        *_orphans(store),
        *(path for path in sorted(folder.iterdir()) if _TORN.fullmatch(path.name)),
    ]
    locks = [lock for each in kept for lock in _locks(each)]
    trials = sorted((folder / "trials" / "cells").glob("*"))
    doomed = [
        *trials,
        *(store.cells / f"{key}{end}" for key in cells for end in (".json", ".safetensors")),
        *torn,
        *locks,
    ]
    size = sum(path.stat().st_size for path in doomed if path.is_file())
    if not dry_run:
        store.remove(doomed)
    return Freed(
        len(cells),
        sum(path.suffix == ".json" for path in trials),
        len(torn),
        len(locks),
        size,
        not dry_run,
    )


def _locks(store: Store) -> list[Path]:
    return sorted(path for path in (store.folder / "locks").glob("*") if path.is_file())


def _orphans(store: Store) -> list[Path]:
    """Tensors whose record was never written."""
    return [
        path for path in sorted(store.cells.glob("[!.]*.safetensors")) if not store.has(path.stem)
    ]
