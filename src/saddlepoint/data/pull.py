"""Downloads data, checks it, unpacks it; a file is there whole or not at all."""

from __future__ import annotations

import logging
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from saddlepoint.data.files import data_roots, is_web_page
from saddlepoint.data.load import SOURCES, unknown
from saddlepoint.data.progress import ProgressRow, progress_rows
from saddlepoint.data.record import DataError
from saddlepoint.data.remote import PULLABLE, Remote

__all__ = ["PULLABLE", "pull"]


def pull(
    name: str, *, root: str | Path | None = None, base_url: str | None = None, progress: bool = True
) -> Path:
    """Download the files of `name` into `root/name`, and return that folder.

    `root` is found as by `load_data`. `base_url` is a mirror: the files are asked for there, by name. What is in place
    and has the right checksum is not downloaded again; a file that differs is replaced.
    """
    if name in SOURCES and name not in PULLABLE:
        raise DataError(
            f"There is nothing to pull for {name!r}. Can be pulled: {', '.join(PULLABLE)}."
        )
    if name not in PULLABLE:
        raise unknown(name, PULLABLE)
    folder = data_roots(root)[0] / name
    _make(folder)
    with progress_rows(progress) as row:
        for remote in PULLABLE[name]:
            if not (remote.archive and _unpacked(remote, folder)):
                path = _download(remote, folder, base_url, row(remote.name))
                if remote.archive:
                    _unpack(path, remote, folder)
    return folder


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(
            f"Cannot write to {folder} ({error}). Choose another folder with `--root`."
        ) from error


def _download(remote: Remote, folder: Path, base_url: str | None, row: ProgressRow) -> Path:
    import pooch  # only here: importing it is slow

    url = f"{(base_url or remote.host).rstrip('/')}/{remote.name}"
    fetch = pooch.HTTPDownloader(
        progressbar=row, chunk_size=1 << 16, headers={"Accept-Encoding": "identity"}
    )

    def fetch_data(address: str, output_file: str, owner: object) -> None:
        fetch(address, output_file, owner)
        if is_web_page(Path(output_file)):
            raise DataError(
                f"{url}: expected {remote.name}, found a web page. Open the address in a browser to see why."
            )

    try:
        with _quiet(pooch.get_logger()):
            # pooch writes to a temporary name beside the target and renames it once the checksum is right.
            return Path(
                pooch.retrieve(url, remote.checksum, remote.name, folder, downloader=fetch_data)
            )
    except DataError:
        raise
    except (
        OSError
    ) as error:  # also every error of requests: no network, no such host, 404, connection cut
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
        content = Path(temporary) / "content"
        receipt = Path(temporary) / "receipt"
        try:
            _extract(path, content)
        except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError) as error:
            raise DataError(
                f"Could not unpack {path}: {error}. Its content was not put in place. The archive is the published one "
                "and is kept: free disk space and pull again."
            ) from error
        files = [file for file in sorted(content.rglob("*")) if file.is_file()]
        listed = [
            f"{file.stat().st_size}\t{file.relative_to(content).as_posix()}" for file in files
        ]
        receipt.write_text("\n".join([remote.checksum, *listed]))
        _move(content, folder)
        receipt.replace(_receipt(remote, folder))
    path.unlink()


def _extract(path: Path, target: Path) -> None:
    """Files and folders below `target` only: zipfile strips paths that lead out, tarfile's filter refuses them."""
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as zipped:
            zipped.extractall(target)
    else:
        with tarfile.open(path) as tarred:
            tarred.extractall(target, filter="data")


def _unpacked(remote: Remote, folder: Path) -> bool:
    """Is every file of the archive in place, with its size? The receipt of an earlier pull lists them."""
    receipt = _receipt(remote, folder)
    if not receipt.exists():
        return False
    checksum, *listed = receipt.read_text().splitlines()
    sizes = {
        folder / path: int(size) for size, _, path in (line.partition("\t") for line in listed)
    }
    return checksum == remote.checksum and all(
        p.is_file() and p.stat().st_size == size for p, size in sizes.items()
    )


def _receipt(remote: Remote, folder: Path) -> Path:
    return folder / f".{remote.name}.files"


def _move(source: Path, target: Path) -> None:
    """Rename, or where the folder exists already, merge: two archives of one dataset share their top folder."""
    if source.is_dir() and target.is_dir():
        for member in source.iterdir():
            _move(member, target / member.name)
    else:
        source.replace(target)


@contextmanager
def _quiet(logger: logging.Logger) -> Iterator[None]:
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)
