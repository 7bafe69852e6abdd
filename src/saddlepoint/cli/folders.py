"""The folders that commands write to and read from."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def default_folder(
    target: str, norm: str, radius: str, data: str, n: int | None, effort: str
) -> Path:
    """The folder of a run if none is given: `runs/net-make-linf-8-255-cifar10-1000-standard`.

    Requests with other results therefore have other folders. Characters with a meaning in file
    systems or shells are replaced.

    Args:
        target: The target; the last part of its path and its name are used.
        norm: The norm.
        radius: The radius, as it was written.
        data: The data; the last part of its path and its name are used.
        n: The number of images; None: all.
        effort: The budget of an audit, or the attack of a game.
    """
    of_data = _last_parts(data.removesuffix(".npz"))
    count = "all" if n is None else str(n)
    words = (*_last_parts(target.removeprefix("zoo:")), norm, radius, *of_data, count, effort)
    return Path("runs") / "-".join(
        re.sub(r"[^A-Za-z0-9.]+", "-", word).strip("-.") for word in words if word
    )


def _last_parts(text: str) -> tuple[str, str]:
    """`net` and `make` of `some/where/net.py:make`."""
    place, _, name = text.rpartition(":")
    return Path(place).name.removesuffix(".py"), name.rpartition("/")[2]


@contextmanager
def writable(folder: Path) -> Iterator[None]:
    """Check that the folder can be written to; if an error follows, leave no empty folder behind.

    Raises:
        ValueError: The folder cannot be written to.
    """
    new = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        check_writable(folder)
        yield
    except BaseException:
        for path in new:  # the innermost first
            if path.is_dir() and not any(path.iterdir()):
                path.rmdir()
        raise


def check_writable(folder: Path) -> None:
    """Create the folder and a file in it, so that an error appears before the attacks run.

    Raises:
        ValueError: The folder cannot be written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ValueError(
            f"cannot write to {folder} ({error}). Choose another folder with --out."
        ) from error


def is_game(run: Path) -> bool:
    """Whether the last request in the folder was a game; False without a readable run.json."""
    from saddlepoint.runs.store import Store, StoreError

    try:
        return Store(run).run().get("kind") == "game"
    except StoreError:
        return False
