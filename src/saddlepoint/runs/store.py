"""A folder of finished cells: each written completely or not at all, and checked when read.

    RUN/run.json            the request: specification, hashes, device, keys of its cells
    RUN/spec.toml           the specification, if there is one
    RUN/cells/KEY.json      an attack cell: adversary, rows, hash of its tensors, its own seal
    RUN/cells/KEY.safetensors
    RUN/diagnostics/cells/  measurements, in the same form
    RUN/ledger.jsonl        one line per event; the only file with time stamps

A cell is named by the hash of everything it depends on, so the same work is never done twice, and
changed work is never mistaken for it.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from saddlepoint.atomic import sha256_hex, write_atomic
from saddlepoint.audits.cells import Values
from saddlepoint.describe import digest
from saddlepoint.evaluation import Episode
from saddlepoint.schema import Migrations, SchemaError, migrated

SCHEMA = 1  # of run.json
MIGRATIONS: Migrations = {
    0: lambda run: run
}  # at first it did not say its schema, and said all else as it does now
CELL_SCHEMA = 5  # of a cell, which always said its own
CELL_MIGRATIONS: Migrations = {
    1: lambda cell: cell,  # before ascents were kept: the episode of such a cell has none
    2: lambda cell: cell,  # before a defense could reject: none did
    3: lambda cell: (
        cell
    ),  # before it was kept how near an answer is to a refusal: the episode of such a cell does not say
    4: lambda cell: cell,  # before some tensors had their present names: they are renamed when read
}
_RENAMED = {"ascent": "loss_curve", "refusal": "rejection_scores"}  # tensors, since schema 5
GAME = ("kind", "spec", "target", "threat", "data")  # of run.json: what a game depends on
_TENSORS = tuple(f.name for f in fields(Episode) if f.name not in ("adversary", "seconds"))


class StoreError(RuntimeError):
    """The store cannot be read or written; what is finished is safe."""


class DamagedError(StoreError):
    """What is there was not written by us, or not whole."""


@dataclass(frozen=True)
class PackedCell:
    """A cell as the bytes that are stored: the same work gives the same bytes on every executor."""

    key: str
    record: bytes
    tensors: bytes
    seconds: float

    @classmethod
    def of_episode(
        cls, key: str, episode: Episode, about: dict[str, Any], seconds: float
    ) -> PackedCell:
        """Pack the result of an attack cell; `about` is added to its record."""
        tensors = {name: getattr(episode, name) for name in _TENSORS}
        return cls._of(key, {"adversary": episode.adversary, **about}, tensors, seconds)

    @classmethod
    def of_values(cls, key: str, name: str, values: Values, seconds: float) -> PackedCell:
        """Pack the result of a measurement."""
        return cls._of(key, {"measurement": name}, values, seconds)

    @classmethod
    def _of(
        cls, key: str, about: dict[str, Any], tensors: Mapping[str, Tensor], seconds: float
    ) -> PackedCell:
        content = save({name: t.detach().cpu().contiguous() for name, t in tensors.items()})
        record = {"schema": CELL_SCHEMA, "key": key, **about, "tensors": sha256_hex(content)}
        return cls(key, sealed(record), content, seconds)

    def episode(self) -> Episode:
        """The result of an attack cell."""
        adversary = json.loads(self.record)["adversary"]
        return Episode(adversary=adversary, seconds=self.seconds, **_tensors(self.tensors))

    def values(self) -> Values:
        """The result of a measurement."""
        return _tensors(self.tensors)


@dataclass(frozen=True)
class Store:
    """The cells of one run."""

    folder: Path

    @property
    def cells(self) -> Path:
        return self.folder / "cells"

    def create(self, run: dict[str, Any]) -> dict[str, Any] | None:
        """Make the folder and say what is asked for. Returns what was asked for before, if it can be read.

        A run of a newer schema is refused. What a killed process left is swept up.
        """
        self.opened()
        try:
            before = self.run() if (self.folder / "run.json").is_file() else None
        except DamagedError:
            before = None
        self.state(run)
        return before

    def opened(self) -> Store:
        """The store with its folder; what a killed process left in it is swept up."""
        with _disk_errors(self.folder):
            self.cells.mkdir(parents=True, exist_ok=True)
        self.remove(self.torn())
        return self

    def state(self, run: dict[str, Any]) -> None:
        """Say what is asked for."""
        self.keep(
            "run.json",
            (json.dumps({"schema": SCHEMA, **run}, indent=1, sort_keys=True) + "\n").encode(),
        )

    def run(self) -> dict[str, Any]:
        """What was asked for, in the current schema."""
        path = self.folder / "run.json"
        if not path.is_file():
            raise StoreError(
                f"there is no run in {self.folder}: no run.json. Give the folder that --out named."
            )
        try:
            record = json.loads(path.read_text())
            return migrated(record, MIGRATIONS, SCHEMA, str(self.folder))
        except SchemaError as error:
            raise StoreError(str(error)) from None
        except (OSError, ValueError, AttributeError) as error:
            raise DamagedError(
                f"{path} is damaged ({error}). Run the audit again: finished cells are kept."
            ) from None

    def keep(self, name: str, content: bytes) -> None:
        """A file of the run beside its cells, written whole or not at all."""
        self._write(self.folder / name, content)

    def torn(self) -> list[Path]:
        """Temporary files of cells that nobody is writing: a writer holds the lock of its cell, and is dead if it does not."""
        return [
            path for path in sorted(self.cells.glob(".*")) if not self.busy(path.name.split(".")[1])
        ]

    def busy(self, key: str) -> bool:
        """Is a living process at work on this cell?"""
        try:
            with (self.folder / "locks" / key).open() as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False

    def has(self, key: str) -> bool:
        return (self.cells / f"{key}.json").is_file()

    def keys(self) -> list[str]:
        return sorted(path.stem for path in self.cells.glob("*.json"))

    def put(self, packed: PackedCell) -> None:
        """Tensors first: a cell exists once its record does."""
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
        try:
            content = (self.cells / f"{key}.safetensors").read_bytes()
        except OSError as error:
            raise StoreError(f"cell {key[:12]} has lost its tensors ({error.strerror}).") from None
        if sha256_hex(content) != record["tensors"]:
            raise StoreError(f"cell {key[:12]} is damaged: the hash of its tensors is wrong.")
        packed = PackedCell(key, sealed(record), content, 0.0)
        try:
            if "adversary" in record:
                packed.episode()
            else:
                packed.values()
        except (SafetensorError, TypeError) as error:
            raise StoreError(f"cell {key[:12]} cannot be read: {error}.") from None
        return packed

    def record(self, key: str) -> dict[str, Any]:
        try:
            text = (self.cells / f"{key}.json").read_bytes()
            record: dict[str, Any] = json.loads(text)
        except (OSError, ValueError) as error:
            raise StoreError(f"cell {key[:12]} cannot be read: {error}.") from None
        if sealed({name: value for name, value in record.items() if name != "seal"}) != text:
            raise StoreError(f"cell {key[:12]} is damaged: its record does not fit its seal.")
        if record.get("key") != key:
            raise StoreError(
                f"cell {key[:12]} is damaged: it holds the record of cell {str(record.get('key'))[:12]}."
            )
        try:
            return migrated(record, CELL_MIGRATIONS, CELL_SCHEMA, f"cell {key[:12]}")
        except SchemaError as error:
            raise StoreError(str(error)) from None

    def discard(self, key: str) -> None:
        """Take a damaged cell out of the way; the record goes first, so that it never stands without tensors."""
        self.remove([self.cells / f"{key}.json", self.cells / f"{key}.safetensors"])

    def remove(self, paths: Iterable[Path]) -> None:
        with _disk_errors(self.folder):
            for path in paths:
                path.unlink(missing_ok=True)

    def log(self, event: str, **about: Any) -> None:
        """One line, appended in one write."""
        line = json.dumps({"time": time.time(), "pid": os.getpid(), "event": event, **about}) + "\n"
        with _disk_errors(self.folder), (self.folder / "ledger.jsonl").open("ab") as file:
            file.write(line.encode())

    def events(self) -> Iterator[dict[str, Any]]:
        """All complete lines; a process that was killed may have left a torn one."""
        path = self.folder / "ledger.jsonl"
        for line in path.read_text(errors="replace").splitlines() if path.is_file() else ():
            try:
                yield json.loads(line)
            except ValueError:
                continue

    @contextmanager
    def claim(self, key: str) -> Iterator[bool]:
        """Is this cell ours to compute? The lock falls with the process that holds it, however it dies."""
        lock = self.folder / "locks" / key
        with _disk_errors(self.folder):
            lock.parent.mkdir(parents=True, exist_ok=True)
            file = lock.open("w")
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            # Between opening and locking, somebody may have thrown the file away and another locked its successor.
            yield _same(file.fileno(), lock)

    def _write(self, path: Path, content: bytes) -> None:
        with _disk_errors(self.folder):
            write_atomic(path, content, sync=True)


def identity(run: dict[str, Any]) -> str:
    """What tells one request from another: its cells, whose names follow from target, data, threat, adversaries and seed.

    The cells of a game are found while it is played: there it is all the rest.
    """
    return (
        digest({name: run[name] for name in GAME})
        if run.get("kind") == "game"
        else digest(run["cells"])
    )


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


@contextmanager
def _disk_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StoreError(
                f"the disk that holds {folder} is full. All finished cells are safe: free some space and run again."
            ) from None
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise StoreError(
                f"{folder} cannot be written to ({error.strerror}). All finished cells are safe: make it writable, or copy it and "
                "go on there with --out."
            ) from None
        raise


def _same(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def sealed(record: dict[str, Any]) -> bytes:
    """The record as JSON with a hash of itself: whoever changes it must change that too."""
    seal = sha256_hex(json.dumps(record, sort_keys=True).encode())
    return (json.dumps({**record, "seal": seal}, sort_keys=True, indent=1) + "\n").encode()


def _tensors(content: bytes) -> dict[str, Tensor]:
    """The tensors of a cell by their present names."""
    return {_RENAMED.get(name, name): tensor for name, tensor in load(content).items()}
