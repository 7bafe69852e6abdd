"""A folder of finished cells: each written completely or not at all, and checked when read.

    RUN/run.json            the request: specification, hashes, device, versions, keys of its cells
    RUN/spec.toml           the specification, if there is one
    RUN/cells/KEY.json      an attack cell: adversary, rows, hash of its tensors, its own seal
    RUN/cells/KEY.safetensors
    RUN/cells.zip           these files after `runs compact`
    RUN/diagnostics/        measurements, stored in the same form
    RUN/ledger.jsonl        one line per event; the only file with time stamps

A cell is named by the hash of everything it depends on, so the same work is never done twice, and
changed work is never mistaken for it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from saddlepoint.atomic import sha256_hex, write_atomic
from saddlepoint.audits.cells import Values
from saddlepoint.describe import digest
from saddlepoint.evaluation import Episode
from saddlepoint.reading import ReadError, check, json_object, read_bytes
from saddlepoint.runs.cell_archive import ArchivedFile, CellArchive
from saddlepoint.runs.game_spec import GameSpec
from saddlepoint.runs.locks import claim, is_locked
from saddlepoint.runs.own_files import (
    ARCHIVE,
    CELLS,
    LOCKS,
    LinkError,
    cell_files,
    incomplete_cells,
    incomplete_files,
    reject_links,
)
from saddlepoint.runs.packed_cell import CELL_SCHEMA, PackedCell, sealed
from saddlepoint.runs.records import CellEvent, CellFields, EventFields, RunFields
from saddlepoint.runs.spec import RunSpec, SpecError, validate
from saddlepoint.runs.store_errors import DamagedError, NewerError, StoreError, disk_errors
from saddlepoint.schema import Migrations, NewerSchemaError, SchemaError, migrated
from saddlepoint.tensor_files import write_tensors

__all__ = [
    "DamagedError",
    "NewerError",
    "Store",
    "StoreError",
    "identity",
    "is_record_of",
    "versions",
]

SCHEMA = 2  # of run.json
MIGRATIONS: Migrations = {
    0: lambda run: run,  # schema 0 did not state its schema; the rest is as in schema 1
    1: lambda run: {**run, "versions": {}, "diagnostics": []},  # schema 1 had neither
}
CELL_MIGRATIONS: Migrations = {
    1: lambda cell: cell,  # schema 1 had no loss curves; such an episode has none
    2: lambda cell: cell,  # schema 2 had no rejections; no defense could reject
    3: lambda cell: cell,  # schema 3 had no rejection scores; such an episode has none
    4: lambda cell: cell,  # schema 4 had other names of tensors; they are renamed when read
}
LARGEST_RECORD = 16 * 2**20  # bytes of the record of a cell
LARGEST_CELL = 16 * 2**30  # bytes of the tensors of a cell, and of a ledger
REQUESTED = "requested"  # event of the ledger: a request was written to run.json
_OLD_EVENTS = {"asked": REQUESTED}  # names of events in ledgers of earlier versions
GAME = ("kind", "spec", "target", "threat", "data")  # fields of run.json that identify a game


@dataclass(frozen=True)
class Store:
    """The cells of one run."""

    folder: Path

    @property
    def cells(self) -> Path:
        """The folder of the cells."""
        return self.folder / CELLS

    def create(self, run: dict[str, Any]) -> dict[str, Any] | None:
        """Make the folder, write the request, and return the request that it replaces.

        Incomplete files of killed processes are removed.

        Returns:
            The previous request; None if there is none, or if it is damaged.

        Raises:
            StoreError: the folder cannot be written to, or a newer version wrote run.json.
        """
        self.opened()
        try:
            before = self.run() if (self.folder / "run.json").is_file() else None
        except DamagedError:
            before = None
        self.write_run(run)
        return before

    def opened(self) -> Store:
        """Make the folder, remove incomplete files of killed processes, and return the store.

        Raises:
            StoreError: the folder contains links or cannot be written to.
        """
        self._reject_links()
        with disk_errors(self.folder):
            self.cells.mkdir(parents=True, exist_ok=True)
        self.remove([*self.incomplete_files(), *incomplete_files(self.folder)])
        return self

    def write_run(self, run: dict[str, Any]) -> None:
        """Write the request to run.json, with the versions of the software that runs it."""
        record = {"schema": SCHEMA, "versions": versions(), **run}
        text = json.dumps(record, indent=1, sort_keys=True) + "\n"
        self.write_file("run.json", text.encode())

    def run(self) -> dict[str, Any]:
        """The request in run.json, in the current schema.

        Raises:
            StoreError: there is no run, or a newer version wrote it.
            DamagedError: run.json is damaged.
        """
        path = self.folder / "run.json"
        self._reject_links()
        try:
            if not path.is_file():
                raise StoreError(
                    f"there is no run in {self.folder}: no run.json. Give the folder that --out "
                    "named."
                )
            record = json_object(read_bytes(path), path.name)
            run = migrated(record, MIGRATIONS, SCHEMA, str(self.folder))
            check(run, RunFields, path.name)
            _check_spec(run)
        except SchemaError as error:
            raise StoreError(str(error)) from None
        except (OSError, ReadError, SpecError) as error:
            raise DamagedError(
                f"{path} is damaged ({error}). Run the audit again: finished cells are kept."
            ) from None
        return run

    def _reject_links(self) -> None:
        try:
            reject_links(self.folder)
        except LinkError as error:
            raise StoreError(str(error)) from None
        except OSError as error:
            raise StoreError(f"{self.folder} cannot be read ({error.strerror}).") from None

    def write_file(self, name: str, content: bytes) -> None:
        """Write a file of the run beside its cells, completely or not at all."""
        self._write(self.folder / name, content)

    def write_tensors(self, name: str, tensors: Mapping[str, Tensor]) -> str:
        """Write tensors of the run beside its cells; returns the SHA-256 of the file."""
        with disk_errors(self.folder):
            return write_tensors(self.folder / name, tensors, sync=True)

    def incomplete_files(self) -> list[Path]:
        """Temporary files of killed processes: a process that writes a cell holds its lock."""
        files = incomplete_cells(self.cells)
        return [path for path, key in files.items() if not self.is_locked(key)]

    def is_locked(self, key: str) -> bool:
        """Whether a running process computes this cell."""
        return is_locked(self.folder / LOCKS / key)

    def has(self, key: str) -> bool:
        """Whether there is a cell with this key. It may be damaged."""
        name = f"{key}.json"
        return (self.cells / name).is_file() or name in self.archived()

    def keys(self) -> list[str]:
        """The keys of all cells in the folder, sorted."""
        archived = {name.partition(".")[0] for name in self.archived() if name.endswith(".json")}
        return sorted({*cell_files(self.cells, "json"), *archived})

    @property
    def archive(self) -> CellArchive:
        """The archive of compacted cells. It may not exist."""
        return CellArchive(self.folder / ARCHIVE)

    def archived(self) -> Mapping[str, ArchivedFile]:
        """The files of cells in the archive, by name.

        Raises:
            DamagedError: The archive is damaged.
        """
        try:
            return self.archive.files()
        except ReadError as error:
            raise DamagedError(
                f"{error}. Restore the archive from a copy, or remove it to compute its cells "
                "again."
            ) from None

    def write_archive(self, files: Iterable[tuple[str, Callable[[], bytes]]]) -> None:
        """Write the archive: names of files and functions that read them."""
        with disk_errors(self.folder):
            self.archive.write(files)

    def remove_archived(self, names: Collection[str]) -> None:
        """Remove files from the archive."""
        with disk_errors(self.folder):
            self.archive.without(names, LARGEST_CELL)

    def cell_file(self, name: str, largest: int = LARGEST_CELL) -> bytes:
        """The content of a file of a cell, which may be in the archive.

        Raises:
            OSError: There is no such file, or it cannot be opened.
            ReadError: It is too large, or the archive is damaged.
        """
        try:
            return read_bytes(self.cells / name, largest)
        except FileNotFoundError:
            if name not in self.archive.files():
                raise
        return self.archive.read(name, largest)

    def put(self, packed: PackedCell) -> None:
        """Store a cell. The record is written last: a cell exists as soon as its record does."""
        self._write(self.cells / f"{packed.key}.safetensors", packed.tensors)
        self._write(self.cells / f"{packed.key}.json", packed.record)

    def get(self, key: str) -> Episode:
        """The result of an attack cell, or a `StoreError` that says how it is damaged."""
        return self._read(key).episode()

    def values(self, key: str) -> Values:
        """The result of a measurement, or a `StoreError` that says how it is damaged."""
        return self._read(key).values()

    def check(self, key: str) -> None:
        """Read a cell and raise a `StoreError` if it is damaged."""
        self._read(key)

    def _read(self, key: str) -> PackedCell:
        record = self.record(key)
        name = f"cell {key[:12]}"
        try:
            content = self.cell_file(f"{key}.safetensors")
        except OSError as error:
            raise StoreError(f"{name} has lost its tensors ({error.strerror}).") from None
        except ReadError as error:
            raise StoreError(f"{name} cannot be read: {error}.") from None
        if sha256_hex(content) != record["tensors"]:
            raise StoreError(f"{name} is damaged: the hash of its tensors is wrong.")
        packed = PackedCell(key, sealed(record), content, 0.0)
        try:
            if record.get("adversary") is not None:
                packed.episode()
            else:
                packed.values()
        except (SafetensorError, TypeError, ValueError) as error:
            raise StoreError(f"{name} cannot be read: {error}.") from None
        return packed

    def record(self, key: str) -> dict[str, Any]:
        """The record of a cell in the current schema.

        Raises:
            NewerError: a newer version wrote it.
            StoreError: it is damaged.
        """
        name = f"cell {key[:12]}"
        try:
            text = self.cell_file(f"{key}.json", LARGEST_RECORD)
            record = json_object(text, name)
            current = migrated(record, CELL_MIGRATIONS, CELL_SCHEMA, name)
        except NewerSchemaError as error:
            raise NewerError(str(error)) from None
        except SchemaError as error:
            raise StoreError(str(error)) from None
        except (OSError, ReadError) as error:
            raise StoreError(f"{name} cannot be read: {error}.") from None
        if sealed({name: value for name, value in record.items() if name != "seal"}) != text:
            raise StoreError(f"{name} is damaged: its record does not fit its seal.")
        if record.get("key") != key:
            other = str(record.get("key"))[:12]
            raise StoreError(f"{name} is damaged: it holds the record of cell {other}.")
        try:
            check(current, CellFields, name)
        except ReadError as error:
            raise StoreError(f"{error}.") from None
        return current

    def discard(self, key: str) -> None:
        """Remove a damaged cell. The record is removed first, so that it always has tensors."""
        names = (f"{key}.json", f"{key}.safetensors")
        self.remove(self.cells / name for name in names)
        self.remove_archived(names)

    def remove(self, paths: Iterable[Path]) -> None:
        """Remove files; those that do not exist are ignored."""
        with disk_errors(self.folder):
            for path in paths:
                path.unlink(missing_ok=True)

    def log(self, event: str, **about: Any) -> None:
        """Append an event to the ledger, in one write."""
        line = json.dumps({"time": time.time(), "pid": os.getpid(), "event": event, **about}) + "\n"
        with disk_errors(self.folder), (self.folder / "ledger.jsonl").open("ab") as file:
            file.write(line.encode())

    def events(self) -> Iterator[dict[str, Any]]:
        """The events of the ledger. Incomplete and damaged lines are left out."""
        path = self.folder / "ledger.jsonl"
        try:
            lines = read_bytes(path, LARGEST_CELL).splitlines() if path.is_file() else []
        except (OSError, ReadError):
            return
        for line in lines:
            try:
                event = json_object(line, path.name)
                model = CellEvent if event.get("event") == "cell" else EventFields
                check(event, model, path.name)
            except ReadError:
                continue
            yield {**event, "event": _OLD_EVENTS.get(event["event"], event["event"])}

    def claim(self, key: str) -> AbstractContextManager[bool]:
        """Lock a cell; the value says whether this process may compute it."""
        return claim(self.folder / LOCKS / key)

    def _write(self, path: Path, content: bytes) -> None:
        with disk_errors(self.folder):
            write_atomic(path, content, sync=True)


def _check_spec(run: dict[str, Any]) -> None:
    """Check that the specification in run.json is one.

    Raises:
        SpecError: It is not.
    """
    if run["spec"] is not None:
        model = GameSpec if run.get("kind") == "game" else RunSpec
        validate(model, run["spec"], "its specification")


def versions() -> dict[str, str]:
    """The versions of the software that determine the keys of cells."""
    return {"saddlepoint": _own_version(), "torch": torch.__version__}


@cache
def _own_version() -> str:
    return version("saddlepoint")  # read from a file of the installation


def identity(run: dict[str, Any]) -> str:
    """A hash that distinguishes requests.

    For an audit it is the hash of the keys of its cells, which depend on target, data, threat
    model, adversaries and seed. The cells of a game are known only after it was played, so the
    hash of the other fields is used.
    """
    if run.get("kind") == "game":
        return digest({name: run[name] for name in GAME})
    return digest(run["cells"])


def is_record_of(claimed: str, store: Store, run: dict[str, Any]) -> bool:
    """Whether a record is the result of the request in `run.json`.

    Args:
        claimed: The identity of the request that the record states. Records of old versions
            state none (an empty text); then the last finished request in the ledger counts.
        store: The folder of the run.
        run: The content of `run.json`.
    """
    if claimed:
        return claimed == identity(run)
    last = [event for event in store.events() if event["event"] == "concluded"][-1:]
    return bool(last) and last[0].get("run", identity(run)) == identity(run)
