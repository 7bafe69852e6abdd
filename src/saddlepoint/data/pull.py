"""Downloads data, checks it, unpacks it; a file is there whole or not at all."""

from __future__ import annotations

import logging
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn

from saddlepoint.data.files import data_roots, refuse_web_page
from saddlepoint.data.load import SOURCES, unknown
from saddlepoint.data.record import DataError
from saddlepoint.data.remote import PULLABLE, Remote

__all__ = ["PULLABLE", "pull"]
_RECEIPT = ".unpacked"  # checksums of the archives whose content is all in place


def pull(name: str, *, root: str | Path | None = None, base_url: str | None = None, progress: bool = True) -> Path:
    """Download the files of `name` into `root/name`, and return that folder.

    `root` is found as by `load_data`. `base_url` is a mirror: the files are asked for there, by name. What is in place
    and has the right checksum is not downloaded again; a file that differs is replaced.
    """
    if name in SOURCES and name not in PULLABLE:
        raise DataError(f"There is nothing to pull for {name!r}. Can be pulled: {', '.join(PULLABLE)}.")
    if name not in PULLABLE:
        raise unknown(name, PULLABLE)
    folder = data_roots(root)[0] / name
    folder.mkdir(parents=True, exist_ok=True)
    with _bar(progress) as bar:
        for remote in PULLABLE[name]:
            if not (remote.archive and remote.checksum in _receipts(folder)):
                path = _download(remote, folder, base_url, bar.row(remote.name))
                if remote.archive:
                    _unpack(path, remote, folder)
    return folder


class _Row(Protocol):
    """What pooch asks of a progress bar."""

    total: int

    def update(self, step: int) -> None: ...
    def reset(self) -> None: ...
    def close(self) -> None: ...


class _Bar:
    """One row per file."""

    def __init__(self, display: Progress) -> None:
        self.display = display

    def row(self, name: str) -> _Row:
        return _RichRow(self.display, self.display.add_task(name, total=None))


class _RichRow:
    def __init__(self, display: Progress, task: TaskID) -> None:
        self.display, self.task = display, task
        self.done, self.size = 0, 0

    @property
    def total(self) -> int:
        return self.size

    @total.setter
    def total(self, size: int) -> None:
        self.size = size
        self.display.update(self.task, total=size or None)  # 0: the server does not say

    def update(self, step: int) -> None:
        self.done += step
        self.display.update(self.task, completed=self.done)

    def reset(self) -> None:
        self.done = 0
        self.display.update(self.task, completed=0)

    def close(self) -> None:
        self.display.refresh()


@contextmanager
def _bar(shown: bool) -> Iterator[_Bar]:
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, disable=not shown) as display:
        yield _Bar(display)


def _download(remote: Remote, folder: Path, base_url: str | None, row: _Row) -> Path:
    import pooch  # only here: importing it is slow

    url = f"{(base_url or remote.host).rstrip('/')}/{remote.name}"
    fetch = pooch.HTTPDownloader(progressbar=row, chunk_size=1 << 16, headers={"Accept-Encoding": "identity"})

    def fetch_data(address: str, output_file: str, owner: object) -> None:
        fetch(address, output_file, owner)
        refuse_web_page(Path(output_file))

    try:
        with _quiet(pooch.get_logger()):
            # pooch writes to a temporary name beside the target and renames it once the checksum is right.
            return Path(pooch.retrieve(url, remote.checksum, remote.name, folder, downloader=fetch_data))
    except DataError as error:
        raise DataError(f"{url}: {error}") from error
    except OSError as error:  # also every error of requests: no network, no such host, 404, connection cut
        raise DataError(
            f"Could not download {url}: {error}. Check the network; or get the file elsewhere and put it into "
            f"{folder}, or name a mirror (`--base-url`)."
        ) from error
    except ValueError as error:
        raise DataError(
            f"{url} is not the file we know: its checksum should be {remote.checksum}. Nothing was kept. Try again; "
            f"if it happens twice, the server has another file: get {remote.name} elsewhere."
        ) from error


def _unpack(path: Path, remote: Remote, folder: Path) -> None:
    """Unpack beside the target, move into place, note it down, delete the archive: killed anywhere, it starts again."""
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        try:
            if path.suffix == ".zip":
                with zipfile.ZipFile(path) as zipped:
                    zipped.extractall(temporary)  # keeps members inside, makes no links
            else:
                with tarfile.open(path) as tarred:
                    tarred.extractall(temporary, filter="data")
        except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError) as error:
            raise DataError(f"Could not unpack {path}: {error}. Is the disk full? Nothing was put in place.") from error
        for member in Path(temporary).iterdir():
            _move(member, folder / member.name)
    with (folder / _RECEIPT).open("a") as receipts:
        receipts.write(remote.checksum + "\n")
    path.unlink()


def _move(source: Path, target: Path) -> None:
    """Rename, or where the folder exists already, merge: two archives of one dataset share their top folder."""
    if source.is_dir() and target.is_dir():
        for member in source.iterdir():
            _move(member, target / member.name)
    else:
        source.replace(target)


def _receipts(folder: Path) -> list[str]:
    path = folder / _RECEIPT
    return path.read_text().split() if path.exists() else []


@contextmanager
def _quiet(logger: logging.Logger) -> Iterator[None]:
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)
