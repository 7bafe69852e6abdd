"""Where data files are looked for, and how they are read: whole, or refused."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Sequence
from pathlib import Path

from saddlepoint.data.record import DataError
from saddlepoint.data.remote import PULLABLE

SYSTEM_FOLDER = Path("/usr/share/datasets")  # Debian's dataset-* packages


def data_roots(root: str | Path | None) -> tuple[Path, ...]:
    """The folders to search, in order; the first is the one that `pull` writes to.

    `root` if it is given, and nothing else. Otherwise the folder named by the environment variable SADDLEPOINT_DATA, or
    the user's cache folder, then the folder of Debian's dataset packages.
    """
    if root is not None:
        return (Path(root).expanduser(),)
    chosen = os.environ.get("SADDLEPOINT_DATA")
    return (Path(chosen).expanduser() if chosen else _cache_folder(), SYSTEM_FOLDER)


def find_folder(
    name: str, roots: Sequence[Path], folders: Sequence[str], any_of: Sequence[str]
) -> Path:
    """The first folder that exists with one of the files `any_of` in it, or an error that lists where we looked.

    A root may also be the folder itself, if its own name says so: the files of MNIST and Fashion-MNIST have the same
    names, so an unnamed folder is not guessed to be either.
    """
    looked = [place for root in roots for place in _places(root, folders)]
    for place in looked:
        if any((place / file).exists() for file in any_of):
            return place
    raise missing(name, looked, any_of)


def missing(name: str, looked: Sequence[Path], any_of: Sequence[str]) -> DataError:
    """The error for files that are in none of the places, with what to do."""
    places = "".join(
        f"\n  {place}{'' if place.is_dir() else ' (no such folder)'}" for place in looked
    )
    pull = f"Run `saddlepoint data pull {name}`, or say" if name in PULLABLE else "Say"
    return DataError(
        f"{name}: looked for {' or '.join(any_of)} in{places}\nand found none. {pull} where the files are with "
        "`--root` (root= in Python) or the environment variable SADDLEPOINT_DATA."
    )


def read_bytes(path: Path) -> bytes:
    """The content of a file, decompressed if its name ends in .gz; refuses a web page and a damaged gzip."""
    refuse_web_page(path)
    if path.suffix != ".gz":
        return path.read_bytes()
    try:
        return gzip.decompress(path.read_bytes())
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(
            f"{path} is not a whole gzip file ({error}). It is damaged or cut short: delete it and pull it again."
        ) from error


def refuse_web_page(path: Path) -> None:
    """An error if the file is a page that a server sent in place of data, before it is misread as damaged data."""
    if is_web_page(path):
        raise DataError(
            f"{path}: expected data, found a web page. A server or proxy sent a page instead of the file: delete "
            "it and get the file elsewhere."
        )


def is_web_page(path: Path) -> bool:
    """Does the file begin as HTML or XML does? Servers send such pages for what moved, is missing or needs a login."""
    with path.open("rb") as file:
        head = file.read(512).lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    return head.startswith((b"<!doctype", b"<html", b"<?xml"))


def _places(root: Path, folders: Sequence[str]) -> list[Path]:
    below = [root / folder for folder in folders]
    own = root.absolute().parts
    itself = any(
        own[-len(parts) :] == parts for parts in (Path(folder).parts for folder in folders)
    )
    return [root, *below] if itself else below


def _cache_folder() -> Path:
    import pooch  # only here: importing it is slow, and a known root does without

    return Path(pooch.os_cache("saddlepoint"))
