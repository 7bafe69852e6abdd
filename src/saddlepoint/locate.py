"""Finds a Python object by a string: `file.py:name` or `package.module:name`."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType


class LocateError(ValueError):
    """A `file.py:name` or `package.module:name` string that leads to no object."""


def locate(spec: str) -> object:
    """The object that `spec` names, imported as if from the folder of the file, or from the current folder.

    `file.py:name` runs the file; its neighbors can be imported while it runs. `package.module:name` imports a module
    that is installed or lies in the current folder. `name` may be dotted: `nets.py:Small.pretrained`. Importing runs
    the user's code: a spec is trusted as much as a script is.
    """
    place, colon, name = spec.rpartition(":")
    if not colon or not place or not name:
        raise LocateError(f"Expected 'file.py:name' or 'package.module:name', got {spec!r}.")
    module = _run_file(Path(place)) if place.endswith(".py") else _import_module(place)
    found: object = module
    for part in name.split("."):
        found = _attribute(found, part, spec)
    return found


def _run_file(path: Path) -> ModuleType:
    path = path.expanduser().resolve()
    if not path.is_file():
        raise LocateError(
            f"There is no file {path}. Check the path; a relative one starts at {Path.cwd()}."
        )
    # Named by path and content: two files called model.py stay apart, an edited file is run again, and an unchanged one
    # is not, so that its classes keep their identity.
    key = hashlib.sha256(str(path).encode() + b"\0" + path.read_bytes()).hexdigest()[:12]
    name = f"_located_{path.stem}_{key}"
    if name in sys.modules:
        return sys.modules[name]
    module_spec = importlib.util.spec_from_file_location(name, path)
    assert module_spec is not None
    assert module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[name] = module  # dataclasses and pickle look their module up while it runs
    try:
        with _first_on_path(path.parent):
            module_spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise LocateError(f"Running {path} raised {told(error)}.") from error
    return module


def _import_module(name: str) -> ModuleType:
    try:
        with _first_on_path(Path.cwd()):
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            raise LocateError(
                f"There is no module {error.name!r}. Install it, start in the folder that holds it, or give a file: 'file.py:name'."
            ) from error
        raise LocateError(
            f"Importing {name} raised {told(error)}. Install what it needs."
        ) from error
    except (Exception, SystemExit) as error:
        raise LocateError(f"Importing {name} raised {told(error)}.") from error


def _attribute(holder: object, name: str, spec: str) -> object:
    try:
        return getattr(holder, name)
    except AttributeError:
        known = [word for word in dir(holder) if not word.startswith("_")]
        near = get_close_matches(name, known, n=1)
        advice = (
            f"Did you mean {near[0]!r}?"
            if near
            else f"It has: {', '.join(known[:20]) or 'no public names'}."
        )
        raise LocateError(
            f"Nothing is called {name!r} in {spec.rpartition(':')[0]}. {advice}"
        ) from None


@contextmanager
def _first_on_path(folder: Path) -> Iterator[None]:
    entry = str(folder)
    sys.path.insert(0, entry)
    try:
        yield
    finally:
        if entry in sys.path:
            sys.path.remove(entry)


def told(error: BaseException) -> str:
    """The error and the line that raised it: the reader may see this sentence without the traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    # The line that can be changed: what it called into, torch say, is not the reader's.
    own = [frame for frame in frames if not _installed(Path(frame.filename))] or frames
    message = next(iter(str(error).strip().splitlines()), "")
    return (
        f"{type(error).__name__}: {message} ({Path(own[-1].filename).name}, line {own[-1].lineno})"
    )


def _installed(path: Path) -> bool:
    return (
        "site-packages" in path.parts
        or path.is_relative_to(Path(__file__).parent)
        or str(path).startswith("<frozen")
    )
