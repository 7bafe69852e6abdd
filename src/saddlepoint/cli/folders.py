"""The folders that commands write to and read from."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path


def default_folder(target: str, norm: str, radius: str) -> Path:
    """The folder of an audit if none is given, for example `runs/net-make-linf-8-255`.

    It consists of the last part of the target's path, its name, the norm and the radius. Characters
    with a meaning in file systems or shells are replaced.
    """
    place, _, name = target.removeprefix("zoo:").rpartition(":")
    words = (Path(place).name.removesuffix(".py"), name.rpartition("/")[2], norm, radius)
    return Path("runs") / "-".join(
        re.sub(r"[^A-Za-z0-9.]+", "-", word).strip("-.") for word in words if word
    )


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
