"""Is this installation fit to run audits? Each part is tried, not looked up."""

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

State = Literal["ok", "note", "problem"]

NEEDED = (  # distribution, module that a damaged installation fails to import
    ("numpy", "numpy"), ("pooch", "pooch"), ("pydantic", "pydantic"), ("rich", "rich"), ("safetensors", "safetensors.torch"),
    ("scikit-learn", "sklearn.datasets"), ("scipy", "scipy.stats"), ("tomli-w", "tomli_w"), ("torch", "torch"), ("typer", "typer"),
)  # fmt: skip
OPTIONAL = (  # distribution, module, what for, how to get it
    ("ray", "ray", "--executor ray", "pip install 'saddlepoint[ray]'"),
    ("pillow", "PIL.Image", "reading Tiny-ImageNet", "pip install pillow"),
)
_ROOM = 1e9  # bytes below which a disk is said to be nearly full


@dataclass(frozen=True)
class Finding:
    """One part of the installation: fit, fit with a remark, or broken; and what to do."""

    name: str
    state: State
    message: str


def examine(runs: Path, root: Path | None = None) -> Iterator[Finding]:
    """Everything, in the order in which one thing rests on another; without its packages nothing more can be tried."""
    yield Finding(
        "python", "ok", platform.python_version()
    )  # pip refuses versions that are too old
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
            f"cannot be imported ({error}). Install the package again: pip install --upgrade saddlepoint",
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
    """A gradient that is known: d/dx x^2 = 2 x."""
    import torch

    x = torch.tensor([3.0], requires_grad=True)
    (slope,) = torch.autograd.grad((x * x).sum(), x)
    if slope.item() != 6.0:
        return Finding(
            "gradients",
            "problem",
            f"torch says that the slope of x² at 3 is {slope.item()}. Install torch again.",
        )
    threads = torch.get_num_threads()
    cores = os.cpu_count() or 1
    told = f"torch uses {threads} of {cores} cores"
    if threads > cores:
        return Finding(
            "threads",
            "note",
            f"{told}: more threads than cores slow it down. Set OMP_NUM_THREADS={cores}.",
        )
    return Finding(
        "threads",
        "ok",
        f"{told}; a run uses one per cell, and --workers as many cells at once as you like",
    )


def _devices() -> Finding:
    """A device that is listed may still refuse to work: each is asked for one number."""
    import torch

    found = [
        *(f"cuda:{k}" for k in range(torch.cuda.device_count())),
        *(["mps"] if torch.backends.mps.is_available() else []),
    ]
    broken = {
        name: error
        for name in found
        if (error := _refusal(partial(torch.zeros, 1, device=name))) is not None
    }
    if broken:
        told = "; ".join(f"{name}: {error.splitlines()[0]}" for name, error in broken.items())
        return Finding(
            "devices",
            "problem",
            f"listed but not usable: {told}. Check the driver, or use --device cpu.",
        )
    if not found:
        return Finding(
            "devices",
            "note",
            "cpu alone: audits of large nets will be slow. With a GPU, install torch for it.",
        )
    return Finding("devices", "ok", f"cpu, {', '.join(found)}: choose with --device")


def _zoo() -> Iterator[Finding]:
    """Loading compares each file with its recorded SHA-256."""
    from saddlepoint.zoo import names, target

    wrong = {
        name: error for name in names() if (error := _refusal(partial(target, name))) is not None
    }
    yield from (Finding(f"zoo:{name}", "problem", error) for name, error in wrong.items())
    if not names():
        yield Finding("zoo", "problem", "no embedded model was found. Install the package again.")
    elif not wrong:
        yield Finding(
            "zoo",
            "ok",
            f"{len(names())} embedded models have their recorded SHA-256: {', '.join(names())}",
        )


def _data(root: Path | None) -> Iterator[Finding]:
    """One image of each source: a folder that exists may still hold half a download."""
    from saddlepoint.data import PULLABLE, SOURCES, DataError, data_roots, load_data

    places = data_roots(root)
    yield Finding(
        "data folders",
        "ok",
        ", ".join(f"{p}{'' if p.is_dir() else ' (not there)'}" for p in places),
    )
    for name in SOURCES:
        for place in places:
            try:
                shape = list(load_data(name, n=1, root=place).x.shape[1:])
            except DataError as error:
                absent = "and found none" in str(error)
                told = str(error)
                if not absent:
                    yield Finding(f"data {name}", "problem" if name == "digits" else "note", told)
                    break
            else:
                yield Finding(
                    f"data {name}",
                    "ok",
                    f"images {shape}, " + ("embedded" if name == "digits" else f"in {place}"),
                )
                break
        else:
            yield Finding(
                f"data {name}",
                "note",
                f"not here{f': saddlepoint data pull {name}' if name in PULLABLE else ''}",
            )


def _writable(runs: Path) -> Finding:
    """The folder, or the nearest one above it that exists: `audit` makes the rest."""
    place = next(p for p in (runs.absolute(), *runs.absolute().parents) if p.exists())
    error = _refusal(lambda: tempfile.TemporaryFile(dir=place).close())
    if error is not None:
        return Finding(
            "runs folder",
            "problem",
            f"{runs} cannot be written to ({error}). Start elsewhere, or give --out.",
        )
    free = shutil.disk_usage(place).free
    if free < _ROOM:
        return Finding(
            "runs folder",
            "note",
            f"{runs} can be written to, but its disk has only {free / 1e6:.0f} MB left",
        )
    return Finding("runs folder", "ok", f"{runs} can be written to, {free / 1e9:.0f} GB free")


def _refusal(act: Callable[[], object]) -> str | None:
    try:
        act()
    except Exception as error:
        return str(error)
    return None
