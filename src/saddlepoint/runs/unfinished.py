"""Recognizes a run that was interrupted, without loading its target."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from saddlepoint.phrases import count_of
from saddlepoint.reading import ReadError, json_object, read_bytes
from saddlepoint.runs.own_files import MANIFEST
from saddlepoint.runs.store import Store, is_record_of


class UnfinishedError(ValueError):
    """A run was interrupted, or is still being computed."""


def check_finished(folder: Path) -> None:
    """Reject a run that was not computed to its end.

    The manifest is written last. A run with a manifest was finished, and files that are missing
    now were removed later. Runs of early versions have no manifest, but all cells and a record.

    Raises:
        UnfinishedError: the run is not finished.
        StoreError: the folder contains no run that can be read.
    """
    store = Store(folder)
    run = store.run()
    if (folder / MANIFEST).is_file():
        return
    done = sum(store.has(key) for key in run["cells"])
    if done < len(run["cells"]) or not _has_record(store, run):
        raise unfinished(folder, run, done)


def unfinished(folder: Path, run: Mapping[str, Any], done: int) -> UnfinishedError:
    """The error about a run that is not finished.

    Args:
        folder: the folder of the run.
        run: the content of its run.json.
        done: the number of its cells that are finished.
    """
    total = len(run["cells"])
    # The cells of a game are not known before they are computed.
    cells = f" ({count_of(done, total, 'cell')})" if total else ""
    if done == total and total:
        cells = f" ({count_of(done, total, 'cell')}, but no record)"
    again = f"Run the same `saddlepoint {run.get('kind', 'audit')}` command again"
    if run["spec"] is None:
        again = "Call `audit` again with the same arguments and the same `out=`"
    return UnfinishedError(f"the run in {folder} is not finished{cells}. {again} to continue.")


def _has_record(store: Store, run: dict[str, Any]) -> bool:
    """Whether there is a record of this request; also True for a damaged record."""
    path = store.folder / ("game.json" if run.get("kind") == "game" else "audit.json")
    if not path.is_file():
        return False
    try:
        claimed = json_object(read_bytes(path), path.name).get("run") or ""
    except (OSError, ReadError):
        return True
    return is_record_of(str(claimed), store, run)
