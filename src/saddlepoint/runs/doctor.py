"""Checks whether this installation can run audits.

Each part is tried out: packages are imported, devices compute, files are read and written.
"""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

from saddlepoint import phrases
from saddlepoint.phrases import count

State = Literal["ok", "note", "problem"]

NEEDED = (  # (distribution, a module that a damaged installation fails to import)
    ("numpy", "numpy"),
    ("pooch", "pooch"),
    ("pydantic", "pydantic"),
    ("rich", "rich"),
    ("safetensors", "safetensors.torch"),
    ("scikit-learn", "sklearn.datasets"),
    ("scipy", "scipy.stats"),
    ("tomli-w", "tomli_w"),
    ("torch", "torch"),
    ("typer", "typer"),
)
OPTIONAL = (  # (distribution, module, what needs it, how to install it)
    ("ray", "ray", "--executor ray", "pip install 'saddlepoint[ray]'"),
    ("pillow", "PIL.Image", "reading Tiny-ImageNet", "pip install pillow"),
)
_OTHER_SOURCES = {  # data sets that `saddlepoint data pull` does not know by this name
    "cifar100-coarse": "saddlepoint data pull cifar100",
    "gtsrb10": "put train.npz and test.npz with arrays x and y into a folder gtsrb10",
}
_LITTLE_SPACE = 1e9  # bytes; a disk with less free space gets a note


@dataclass(frozen=True)
class Finding:
    """The state of one part of the installation, and what to do about it."""

    name: str
    state: State  # ok; note: works with a limitation; problem: does not work
    message: str


def examine(runs: Path, root: Path | None = None) -> Iterator[Finding]:
    """Check every part, in an order in which each part needs only the parts before it.

    If a required package cannot be imported, the checks stop after the packages.

    Args:
        runs: The folder that runs are written to.
        root: The folder that contains the data sets; by default the usual places.
    """
    yield Finding("python", "ok", platform.python_version())  # pip rejects versions too old
    packages = [_package(name, module) for name, module in NEEDED]
    yield from packages
    yield from (_optional(*about) for about in OPTIONAL)
    if any(finding.state == "problem" for finding in packages):
        return
    yield _torch()
    yield _devices()
    yield from _zoo()
    yield from _data(root)
    yield _writable(runs)


def _package(name: str, module: str) -> Finding:
    if (error := _import_error(module)) is not None:
        return Finding(
            name,
            "problem",
            f"cannot be imported ({error}). Install the package again: "
            "pip install --upgrade saddlepoint",
        )
    return Finding(name, "ok", _version(name))


def _optional(name: str, module: str, purpose: str, remedy: str) -> Finding:
    if (error := _import_error(module)) is not None:
        return Finding(name, "note", f"not usable ({error}); only {purpose} needs it: {remedy}")
    return Finding(name, "ok", f"{_version(name)}, for {purpose}")


def _import_error(module: str) -> str | None:
    try:
        import_module(module)
    except Exception as error:  # a broken package can raise anything
        return f"{type(error).__name__}: {error}"
    return None


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "version unknown"


def _torch() -> Finding:
    """Computes a known gradient, d/dx x^2 = 2 x, and counts the threads."""
    import torch

    x = torch.tensor([3.0], requires_grad=True)
    (gradient,) = torch.autograd.grad((x * x).sum(), x)
    if gradient.item() != 6.0:
        return Finding(
            "gradients",
            "problem",
            f"the gradient of x² at 3 is 6, but torch computed {gradient.item()}. "
            "Install torch again.",
        )
    threads = torch.get_num_threads()
    cores = os.cpu_count() or 1
    used = f"torch uses {count(threads, 'thread')} on {count(cores, 'core')}"
    if threads > cores:
        return Finding(
            "threads",
            "note",
            f"{used}. More threads than cores are slower: set OMP_NUM_THREADS={cores}.",
        )
    return Finding(
        "threads",
        "ok",
        f"{used}; a run uses one thread per cell, and --workers computes several cells at once",
    )


def _devices() -> Finding:
    """Allocates a tensor on each device, because a device that is listed may still fail."""
    import torch

    devices = [
        *(f"cuda:{k}" for k in range(torch.cuda.device_count())),
        *(["mps"] if torch.backends.mps.is_available() else []),
    ]
    failures = {
        name: error
        for name in devices
        if (error := _error_of(partial(torch.zeros, 1, device=name))) is not None
    }
    if failures:
        listed = "; ".join(f"{name}: {error.splitlines()[0]}" for name, error in failures.items())
        return Finding(
            "devices",
            "problem",
            f"listed but not usable: {listed}. Check the driver, or use --device cpu.",
        )
    if not devices:
        return Finding(
            "devices",
            "note",
            "only the CPU: audits of large models will be slow. If this machine has a GPU, "
            "install the torch version for it.",
        )
    return Finding("devices", "ok", f"cpu, {', '.join(devices)}: choose with --device")


def _zoo() -> Iterator[Finding]:
    """Loads each embedded model, which compares its file with the recorded SHA-256."""
    from saddlepoint.zoo import names, target

    failures = {
        name: error for name in names() if (error := _error_of(partial(target, name))) is not None
    }
    yield from (Finding(f"zoo:{name}", "problem", error) for name, error in failures.items())
    if not names():
        yield Finding("zoo", "problem", "no embedded model was found. Install the package again.")
    elif not failures:
        yield Finding(
            "zoo",
            "ok",
            f"{count(len(names()), 'embedded model')} with the recorded SHA-256: "
            f"{phrases.names(names())}",
        )


def _data(root: Path | None) -> Iterator[Finding]:
    from saddlepoint.data import SOURCES, data_roots

    places = data_roots(root)
    yield Finding(
        "data folders",
        "ok",
        ", ".join(f"{p}{'' if p.is_dir() else ' (does not exist)'}" for p in places),
    )
    yield from (_data_set(name, places) for name in SOURCES)


def _data_set(name: str, places: tuple[Path, ...]) -> Finding:
    """Reads one image, because a folder that exists may contain an incomplete download."""
    from saddlepoint.data import DataError, load_data

    for place in places:
        try:
            shape = list(load_data(name, n=1, root=place).x.shape[1:])
        except DataError as error:
            if "and found none" in str(error):
                continue
            return Finding(f"data {name}", "problem" if name == "digits" else "note", str(error))
        where = "embedded" if name == "digits" else f"in {place}"
        return Finding(f"data {name}", "ok", f"images {shape}, {where}")
    remedy = _OTHER_SOURCES.get(name, f"saddlepoint data pull {name}")
    return Finding(f"data {name}", "note", f"not installed: {remedy}")


def _writable(runs: Path) -> Finding:
    """Writes to the folder, or to its nearest parent that exists: `audit` creates the rest."""
    place = next(p for p in (runs.absolute(), *runs.absolute().parents) if p.exists())
    error = _error_of(lambda: tempfile.TemporaryFile(dir=place).close())
    if error is not None:
        return Finding(
            "runs folder",
            "problem",
            f"{runs} cannot be written to ({error}). Start in another folder, or give --out.",
        )
    free = shutil.disk_usage(place).free
    if free < _LITTLE_SPACE:
        return Finding(
            "runs folder",
            "note",
            f"{runs} can be written to, but its disk has only {free / 1e6:.0f} MB of free space",
        )
    return Finding("runs folder", "ok", f"{runs} can be written to, {free / 1e9:.0f} GB free")


def _error_of(act: Callable[[], object]) -> str | None:
    """The message of the error that the call raises, or None if it raises none."""
    try:
        act()
    except Exception as error:
        return str(error)
    return None
