"""One file with many cells: a zip archive whose members are the files of the cells.

A long run has thousands of cells. `saddlepoint runs compact` moves the files of finished ones into
`cells.zip`, where they keep names and bytes. Any program for zip archives can unpack them.
"""

from __future__ import annotations

import os
import struct
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple

from saddlepoint.atomic import write_atomic_by
from saddlepoint.phrases import count
from saddlepoint.reading import ReadError
from saddlepoint.runs.own_files import is_cell_file

_HEADER = struct.Struct("<4s22xHH")  # signature, length of the name, length of the extra field
_SIGNATURE = b"PK\x03\x04"
_DATE = (1980, 1, 1, 0, 0, 0)  # the earliest of the format: bytes depend on the cells only
_LEVEL = 1  # of compression: points of attacks hardly become smaller with more time
_DAMAGE = (zipfile.BadZipFile, struct.error, zlib.error, ValueError, NotImplementedError, EOFError)


class ArchivedFile(NamedTuple):
    """Where a file of a cell is in an archive."""

    place: int  # of its header
    stored: int  # bytes in the archive
    size: int  # bytes of the file
    deflated: bool


@dataclass(frozen=True)
class CellArchive:
    """The archive of a folder of cells. It may not exist."""

    path: Path

    def files(self) -> Mapping[str, ArchivedFile]:
        """All files in the archive by name; none if there is no archive.

        Raises:
            ReadError: It is damaged, or it contains other files than those of cells.
        """
        try:
            about = os.lstat(self.path)
        except FileNotFoundError:
            return {}
        return _index(self.path, (about.st_ino, about.st_size, about.st_mtime_ns))

    def read(self, name: str, largest: int) -> bytes:
        """The content of a file.

        Raises:
            ReadError: The archive is damaged, or the file is too large.
        """
        member = self.files()[name]
        if member.size > largest:
            found = count(member.size, "byte")
            raise ReadError(self._title(name), "", f"at most {count(largest, 'byte')}", found)
        try:
            content = self._content(member)
        except _DAMAGE as error:
            raise ReadError(self._title(name), "", "an undamaged file", str(error)) from None
        if len(content) != member.size:
            wrong = count(len(content), "byte")
            raise ReadError(self._title(name), "", count(member.size, "byte"), wrong)
        return content

    def write(self, files: Iterable[tuple[str, Callable[[], bytes]]]) -> None:
        """Write the archive completely or not at all; the bytes depend on the files only.

        Args:
            files: the names of the files, and functions that read them.
        """
        known = sorted(files, key=lambda one: one[0])

        def write(temporary: Path) -> None:
            with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED, compresslevel=_LEVEL) as out:
                for name, read in known:
                    about = zipfile.ZipInfo(name, _DATE)
                    about.compress_type = zipfile.ZIP_DEFLATED
                    out.writestr(about, read())

        write_atomic_by(self.path, write, sync=True)

    def without(self, names: Collection[str], largest: int) -> None:
        """Write the archive again without some files; an empty one is removed."""
        kept = [name for name in self.files() if name not in names]
        if len(kept) == len(self.files()):
            return
        if kept:
            self.write((name, partial(self.read, name, largest)) for name in kept)
        else:
            self.path.unlink()

    def _title(self, name: str) -> str:
        return f"{self.path.name}, {name}"

    def _content(self, member: ArchivedFile) -> bytes:
        descriptor = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            file.seek(member.place)
            signature, name, extra = _HEADER.unpack(file.read(_HEADER.size))
            if signature != _SIGNATURE:
                raise zipfile.BadZipFile("no header where the directory says")
            file.seek(name + extra, os.SEEK_CUR)
            stored = file.read(member.stored)
        if not member.deflated:
            return stored
        return zlib.decompressobj(-zlib.MAX_WBITS).decompress(stored, member.size + 1)


@lru_cache(maxsize=8)
def _index(path: Path, stamp: tuple[int, int, int]) -> Mapping[str, ArchivedFile]:  # noqa: ARG001
    """The files in an archive. It is read again when the archive was replaced."""
    if path.is_symlink() or not path.is_file():
        raise ReadError(str(path), "", "a zip archive", "a link, a folder or a device")
    try:
        with zipfile.ZipFile(path) as archive:
            listed = archive.infolist()
    except (*_DAMAGE, OSError) as error:
        raise ReadError(str(path), "", "a zip archive", str(error)) from None
    found = {}
    for one in listed:
        readable = one.compress_type in (zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED)
        if not readable or not is_cell_file(one.filename) or one.filename in found:
            name = one.filename[:100]
            raise ReadError(str(path), "", "every file of a cell once", repr(name))
        deflated = one.compress_type == zipfile.ZIP_DEFLATED
        found[one.filename] = ArchivedFile(
            one.header_offset, one.compress_size, one.file_size, deflated
        )
    return found
