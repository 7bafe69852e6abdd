"""Finds data files and reads them; rejects damaged files and web pages saved in their place."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Sequence
from pathlib import Path

from saddlepoint.data.record import DataError
from saddlepoint.data.remote import PULLABLE
from saddlepoint.phrases import count

_SMALL = 2**30  # bytes that are always allowed
_BLOCK = 2**20  # bytes
_RATIO = 200  # of the size of a file to its compressed size
SYSTEM_FOLDER = Path("/usr/share/datasets")  # Debian's dataset-* packages


def data_roots(root: str | Path | None) -> tuple[Path, ...]:
    """Folders to search for data, in order; `pull` writes to the first one.

    Args:
        root: If given, the only folder. If None, the folder in the environment variable
            SADDLEPOINT_DATA or else the user's cache folder, followed by the folder of Debian's
            dataset packages.
    """
    if root is not None:
        return (Path(root).expanduser(),)
    variable = os.environ.get("SADDLEPOINT_DATA")
    return (Path(variable).expanduser() if variable else _cache_folder(), SYSTEM_FOLDER)


def find_folder(
    name: str, roots: Sequence[Path], folders: Sequence[str], any_of: Sequence[str]
) -> Path:
    """Find the first folder that contains one of several files.

    A root may itself be the dataset folder, but only if its name matches one of `folders`. The
    files of MNIST and Fashion-MNIST have the same names, so the name of the folder must identify
    the dataset.

    Args:
        name: Name of the dataset, for the error message.
        roots: Folders to search, in order.
        folders: Paths of the dataset folder relative to a root.
        any_of: File names; one of them must exist in the folder.

    Raises:
        DataError: No folder contains any of the files; the message lists the folders searched.
    """
    searched = [place for root in roots for place in _candidates(root, folders)]
    for place in searched:
        if any((place / file).exists() for file in any_of):
            return place
    raise missing_files_error(name, searched, any_of)


def missing_files_error(name: str, searched: Sequence[Path], any_of: Sequence[str]) -> DataError:
    """The error for files that are in none of the folders searched, with advice."""
    places = "".join(
        f"\n  {place}{'' if place.is_dir() else ' (no such folder)'}" for place in searched
    )
    advice = f"Run `saddlepoint data pull {name}`, or specify" if name in PULLABLE else "Specify"
    # `saddlepoint.runs.doctor` recognizes this error by the words "and found none".
    return DataError(
        f"{name}: looked for {' or '.join(any_of)} in{places}\nand found none. {advice} the folder "
        "of the files with `--root` (root= in Python) or the environment variable SADDLEPOINT_DATA."
    )


def read_bytes(path: Path, most: int | None = None) -> bytes:
    """Read a file, decompressed if its name ends in .gz.

    Args:
        path: The file.
        most: The number of bytes after which reading stops; default: all are read.

    Raises:
        DataError: The file is a web page, a damaged gzip file, or larger than 1 GB and, if it is
            compressed, than 200 times its compressed size.
    """
    reject_web_page(path)
    limit = _SMALL
    if path.suffix == ".gz":
        limit = max(limit, _RATIO * path.stat().st_size)
    content = _first_bytes(path, limit + 1 if most is None else min(most, limit + 1))
    if len(content) > limit:
        raise DataError(
            f"{path} contains more than {count(limit, 'byte')}, which no data set of this format "
            "has. The file is damaged, or made to use up the memory."
        )
    return content


def _first_bytes(path: Path, number: int) -> bytes:
    """The first bytes of a file, which is decompressed no further."""
    if path.suffix != ".gz":
        with path.open("rb") as file:
            return file.read(min(number, path.stat().st_size))
    blocks: list[bytes] = []
    left = number
    try:
        with gzip.open(path) as unpacked:
            # In blocks, because `read` allocates as much as it may return.
            while left and (block := unpacked.read(min(left, _BLOCK))):
                blocks.append(block)
                left -= len(block)
            return b"".join(blocks)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(
            f"{path} is not a whole gzip file ({error}). The file is damaged or truncated: "
            "delete it and pull it again."
        ) from error


def reject_web_page(path: Path) -> None:
    """Raise an error if the file is a web page that a server returned in place of data.

    Without this check the page would be reported as damaged data.

    Raises:
        DataError: The file is a web page.
    """
    if is_web_page(path):
        raise DataError(
            f"{path}: expected data, found a web page. A server or proxy returned a page instead "
            "of the file: delete it and download the file from another source."
        )


def is_web_page(path: Path) -> bool:
    """Whether the file starts like HTML or XML.

    Servers return such pages for files that moved, are missing, or require a login.
    """
    with path.open("rb") as file:
        head = file.read(512).lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    return head.startswith((b"<!doctype", b"<html", b"<?xml"))


def _candidates(root: Path, folders: Sequence[str]) -> list[Path]:
    below = [root / folder for folder in folders]
    root_parts = root.absolute().parts
    named_like_dataset = any(
        root_parts[-len(parts) :] == parts for parts in (Path(folder).parts for folder in folders)
    )
    return [root, *below] if named_like_dataset else below


def _cache_folder() -> Path:
    # Imported here because importing pooch is slow and not needed when the root is known.
    import pooch

    return Path(pooch.os_cache("saddlepoint"))
