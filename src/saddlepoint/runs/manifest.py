"""The manifest of a run: one list of all its files with their hashes.

It is written when a run has ended. The ledger only grows, so its entry is about its first bytes.
The hash of the manifest therefore stands for the whole run, and a signature of the manifest
(`saddlepoint.runs.signing`) is a signature of all files.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from saddlepoint.atomic import sha256_hex
from saddlepoint.phrases import count
from saddlepoint.reading import ReadError, check, json_object, read_bytes
from saddlepoint.runs.own_files import CELLS, DIAGNOSTICS, MANIFEST, RECORDS, SIGNATURE
from saddlepoint.runs.records import ManifestFields
from saddlepoint.runs.store import LARGEST_CELL, Store, StoreError, identity, versions

SCHEMA = 1
_GROWING = ("ledger.jsonl", f"{DIAGNOSTICS}/ledger.jsonl")  # files that only grow
_FEW = ("run.json", "audit.json", "game.json", "spec.toml", "report.html")
_BLOCK = 2**20  # bytes that are read at once
_LISTED = 3  # files in a list of runs


class Difference(NamedTuple):
    """A file that is not as the manifest says."""

    file: str
    recorded: str
    found: str

    def __str__(self) -> str:
        return f"{self.file}: recorded {self.recorded}, found {self.found}"


def write_manifest(store: Store, run: dict[str, Any]) -> None:
    """Write the manifest of a run that has ended; a signature of an earlier one is removed."""
    files = dict(sorted(_files(store, run)))
    _write(store, {"run": identity(run), "versions": versions(), "files": files})


def refresh(folder: Path, name: str) -> None:
    """Enter a file that was written after the run had ended, such as report.html.

    Without a manifest, or with a damaged one, nothing is changed.
    """
    try:
        manifest = read_manifest(folder)
    except (ReadError, OSError):
        return
    if manifest is not None:
        manifest["files"][name] = _entry(folder / name)
        kept = {key: manifest[key] for key in ("run", "versions", "files")}
        _write(Store(folder), kept)


def remove_manifest(store: Store) -> None:
    """Remove the manifest and its signature: the run is about to change."""
    store.remove([store.folder / MANIFEST, store.folder / SIGNATURE])


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest of a run; None if it has none.

    Raises:
        ReadError: It is damaged.
        OSError: It cannot be opened.
    """
    path = folder / MANIFEST
    if not path.is_file():
        return None
    manifest = json_object(read_bytes(path), MANIFEST)
    check(manifest, ManifestFields, MANIFEST)
    return manifest


def differences(folder: Path, manifest: dict[str, Any]) -> Iterator[Difference]:
    """Files that do not have the size and the hash of the manifest."""
    for name, recorded in manifest["files"].items():
        found = _found(folder, name, recorded["bytes"])
        if found != recorded:
            yield Difference(name, _short(recorded), _short(found) if found else "no such file")


def hash_state(folder: Path) -> str:
    """Whether the files of a run are as in its manifest, as text for a list.

    The hashes of a few small files and the sizes of all others are compared.
    """
    try:
        manifest = read_manifest(folder)
        if manifest is None:
            return "no manifest"
        changed = [*_other_hashes(folder, manifest, _FEW), *_other_sizes(folder, manifest)]
    except (ReadError, OSError):
        return "damaged manifest"
    except StoreError:
        return "damaged archive of cells"
    if not changed:
        return "as recorded"
    more = f" and {len(changed) - _LISTED} more" if len(changed) > _LISTED else ""
    return f"changed: {', '.join(changed[:_LISTED])}{more}"


def record_changed(folder: Path) -> bool:
    """Whether the request or the record of a run has another hash than in its manifest.

    False without a readable manifest.
    """
    names = [name for name in RECORDS if name != "report.html"]
    try:
        manifest = read_manifest(folder)
        return manifest is not None and bool(_other_hashes(folder, manifest, names))
    except (ReadError, OSError):
        return False


def _other_hashes(folder: Path, manifest: dict[str, Any], names: Collection[str]) -> list[str]:
    some = {name: entry for name, entry in manifest["files"].items() if name in names}
    return [one.file for one in differences(folder, {"files": some})]


def _other_sizes(folder: Path, manifest: dict[str, Any]) -> Iterator[str]:
    """Files with another size than in the manifest, or none; names of cells are shortened."""
    for name, recorded in manifest["files"].items():
        if name in _FEW:
            continue
        size = _size(folder, name)
        grown = name in _GROWING and size is not None and size > recorded["bytes"]
        if size != recorded["bytes"] and not grown:
            path = Path(name)
            in_cells = path.parent.name == CELLS
            yield f"{path.parent / path.stem[:12]}…{path.suffix}" if in_cells else name


def _size(folder: Path, name: str) -> int | None:
    """Bytes of a file, which may be in the archive of cells; None if there is none."""
    path = _path(folder, name)
    if path is None:
        return None
    if path.is_file():
        return path.stat().st_size
    store = _store_of(path)
    return store.archived()[path.name].size if store is not None else None


def _write(store: Store, content: dict[str, Any]) -> None:
    remove_manifest(store)
    text = json.dumps({"schema": SCHEMA, **content}, indent=1, sort_keys=True) + "\n"
    store.write_file(MANIFEST, text.encode())


def _files(store: Store, run: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for name in (*RECORDS, *_GROWING):
        if (store.folder / name).is_file():
            yield name, _entry(store.folder / name)
    diagnostics = Store(store.folder / DIAGNOSTICS)
    for part, keys in ((store, run["cells"]), (diagnostics, run.get("diagnostics", ()))):
        for key in keys:
            yield from _cell(store.folder, part, key)


def _cell(folder: Path, store: Store, key: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Both files of a cell. Its record has the hash of its tensors, so these are not read again."""
    record = store.cells / f"{key}.json"
    tensors = store.cells / f"{key}.safetensors"
    if not record.is_file() and record.name in store.archived():
        for path in (record, tensors):
            yield str(path.relative_to(folder)), _entry_of(store.cell_file(path.name))
        return
    yield str(record.relative_to(folder)), _entry(record)
    try:
        digest = store.record(key)["tensors"]
    except StoreError:
        return  # removed or damaged by another process
    size = tensors.stat().st_size
    yield str(tensors.relative_to(folder)), {"sha256": digest, "bytes": size}


def _found(folder: Path, name: str, size: int) -> dict[str, Any] | None:
    """Size and hash of a file; None if there is none in the folder."""
    path = _path(folder, name)
    if path is None:
        return None
    if not path.is_file():
        store = _store_of(path)
        return _entry_of(store.cell_file(path.name)) if store is not None else None
    return _entry(path, size if name in _GROWING else None)


def _path(folder: Path, name: str) -> Path | None:
    """Where a file of the manifest must be; None if that is outside of the folder or a link."""
    path = folder / name
    inside = ".." not in Path(name).parts and not Path(name).is_absolute()
    return path if inside and not path.is_symlink() else None


def _store_of(path: Path) -> Store | None:
    """The store whose archive contains this file of a cell; None if there is none."""
    store = Store(path.parent.parent)
    archived = path.parent == store.cells and path.name in store.archived()
    return store if archived else None


def _entry(path: Path, size: int | None = None) -> dict[str, Any]:
    """Hash and size of a file, or of its first `size` bytes."""
    if size is not None:
        return _entry_of(read_bytes(path, LARGEST_CELL)[:size])
    digest = hashlib.sha256()
    size_read = 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
            size_read += len(block)
    return {"sha256": digest.hexdigest(), "bytes": size_read}


def _entry_of(content: bytes) -> dict[str, Any]:
    return {"sha256": sha256_hex(content), "bytes": len(content)}


def _short(entry: dict[str, Any]) -> str:
    return f"{entry['sha256'][:12]}… ({count(entry['bytes'], 'byte')})"
