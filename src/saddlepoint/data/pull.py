"""Downloads datasets, verifies checksums and unpacks archives; never leaves a partial file."""

from __future__ import annotations

import logging
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from saddlepoint.data.files import data_roots, is_web_page
from saddlepoint.data.load import SOURCES, unknown_name_error
from saddlepoint.data.progress import ProgressRow, progress_rows
from saddlepoint.data.record import DataError
from saddlepoint.data.remote import PULLABLE, Remote

__all__ = ["PULLABLE", "pull"]


def pull(
    name: str, *, root: str | Path | None = None, base_url: str | None = None, progress: bool = True
) -> Path:
    """Download the files of a dataset into `root/name` and return that folder.

    Files that are present with the correct checksum are not downloaded again. A file with another
    checksum is replaced.

    Args:
        name: One of `PULLABLE`.
        root: Folder of the data; resolved as in `load_data`.
        base_url: URL of a mirror that serves the files under their names.
        progress: Whether to show a progress display (default).

    Raises:
        DataError: The name is unknown, or the download or the unpacking failed.
    """
    if name in SOURCES and name not in PULLABLE:
        raise DataError(f"There is nothing to pull for {name!r}. Available: {', '.join(PULLABLE)}.")
    if name not in PULLABLE:
        raise unknown_name_error(name, PULLABLE)
    folder = data_roots(root)[0] / name
    _create_folder(folder)
    with progress_rows(progress) as add_row:
        for remote in PULLABLE[name]:
            if not (remote.archive and _is_unpacked(remote, folder)):
                path = _download(remote, folder, base_url, add_row(remote.name))
                if remote.archive:
                    _unpack(path, remote, folder)
    return folder


def _create_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(
            f"Cannot write to {folder} ({error}). Choose another folder with `--root`."
        ) from error


def _download(remote: Remote, folder: Path, base_url: str | None, row: ProgressRow) -> Path:
    import pooch  # imported here because it is slow

    url = f"{(base_url or remote.host).rstrip('/')}/{remote.name}"
    fetch = pooch.HTTPDownloader(
        progressbar=row, chunk_size=1 << 16, headers={"Accept-Encoding": "identity"}
    )

    def fetch_data(url: str, output_file: str, owner: object) -> None:
        fetch(url, output_file, owner)
        if is_web_page(Path(output_file)):
            raise DataError(
                f"{url}: expected {remote.name}, found a web page. Open the URL in a browser to "
                "see why."
            )

    try:
        with _warnings_only(pooch.get_logger()):
            # pooch writes to a temporary file next to the target and renames it after it verified
            # the checksum.
            return Path(
                pooch.retrieve(url, remote.checksum, remote.name, folder, downloader=fetch_data)
            )
    except DataError:
        raise
    # Errors of requests are OSErrors too: no network, unknown host, 404, connection lost.
    except OSError as error:
        raise DataError(
            f"Could not download {url}: {error}. Check the network; or download the file from "
            f"another source into {folder}, or specify a mirror (`--base-url`)."
        ) from error
    except ValueError as error:
        raise DataError(
            f"{url} is not the expected file: its checksum should be {remote.checksum}. The "
            "download was deleted. Try again; if it happens twice, the server has a different "
            f"file: download {remote.name} from another source."
        ) from error


def _unpack(path: Path, remote: Remote, folder: Path) -> None:
    """Unpack next to the target, move into place, write the file list, delete the archive.

    If the process is killed in between, the next call starts again.
    """
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        content = Path(temporary) / "content"
        file_list = Path(temporary) / "files"
        try:
            _extract(path, content)
        except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError) as error:
            raise DataError(
                f"Could not unpack {path}: {error}. Nothing was installed. The checksum of the "
                "archive is correct and the archive is kept: free disk space and pull again."
            ) from error
        files = [file for file in sorted(content.rglob("*")) if file.is_file()]
        lines = [f"{file.stat().st_size}\t{file.relative_to(content).as_posix()}" for file in files]
        file_list.write_text("\n".join([remote.checksum, *lines]))
        _move(content, folder)
        file_list.replace(_file_list(remote, folder))
    path.unlink()


def _extract(path: Path, target: Path) -> None:
    """Extract an archive below `target` only.

    zipfile strips path components that lead outside; tarfile's filter raises an error for them.
    """
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as zip_archive:
            zip_archive.extractall(target)
    else:
        with tarfile.open(path) as tar_archive:
            tar_archive.extractall(target, filter="data")


def _is_unpacked(remote: Remote, folder: Path) -> bool:
    """Whether every file that an earlier pull unpacked is still present with its size."""
    file_list = _file_list(remote, folder)
    if not file_list.exists():
        return False
    checksum, *lines = file_list.read_text().splitlines()
    sizes = {folder / path: int(size) for size, _, path in (line.partition("\t") for line in lines)}
    return checksum == remote.checksum and all(
        p.is_file() and p.stat().st_size == size for p, size in sizes.items()
    )


def _file_list(remote: Remote, folder: Path) -> Path:
    return folder / f".{remote.name}.files"


def _move(source: Path, target: Path) -> None:
    """Rename `source` to `target`; merge if both are folders.

    Two archives of one dataset share their top-level folder.
    """
    if source.is_dir() and target.is_dir():
        for member in source.iterdir():
            _move(member, target / member.name)
    else:
        source.replace(target)


@contextmanager
def _warnings_only(logger: logging.Logger) -> Iterator[None]:
    """Set the level of a logger to WARNING, then restore it."""
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)
