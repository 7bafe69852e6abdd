"""Which code made a record: versions and the commit of the source tree."""

from __future__ import annotations

import platform
import subprocess
from functools import cache
from importlib.metadata import version
from pathlib import Path

import torch


def versions() -> dict[str, str]:
    """Return the versions of the package, torch and Python, and the commit if it is known."""
    commit = source_commit()
    return {
        "saddlepoint": version("saddlepoint"),
        **({"commit": commit} if commit else {}),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


@cache
def source_commit(folder: Path = Path(__file__).parent.parent) -> str:
    """Return the commit of the package's source tree.

    Args:
        folder: a folder of the source tree; default: the package.

    Returns:
        The hash, followed by "+changes" if tracked files of the folder differ from the commit.
        Empty if the folder is not tracked by git: an installed package has no commit.
    """
    if not _git(folder, "ls-files", "."):  # an environment inside another repository
        return ""
    commit = _git(folder, "rev-parse", "--short=12", "HEAD")
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no", "--", ".")
    return f"{commit}+changes" if commit and changed else commit


def _git(folder: Path, *words: str) -> str:
    """Return the output of a git command; empty if it fails or there is no git."""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()
