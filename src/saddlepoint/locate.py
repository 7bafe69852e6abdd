"""Imports a Python object named by a string: `file.py:name` or `package.module:name`."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
import sysconfig
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType


class LocateError(ValueError):
    """A `file.py:name` or `package.module:name` string does not name an object."""


def locate(spec: str) -> object:
    """Import the object that `spec` names.

    Importing executes the user's code, so a spec must be trusted like a script.

    Args:
        spec: `file.py:name` executes the file; files in the same folder can be imported while it
            runs. `package.module:name` imports a module that is installed or in the current folder.
            `name` may be dotted: `nets.py:Small.pretrained`.

    Raises:
        LocateError: The file, module or name does not exist, or the import raised an error.
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
            f"There is no file {path}.{similar_file(path)} Check the path; relative paths start at "
            f"{Path.cwd()}."
        )
    # The module is named by path and content. Two files called model.py are therefore different
    # modules, and an edited file is executed again. An unchanged file is not executed again, so
    # that its classes keep their identity.
    key = hashlib.sha256(str(path).encode() + b"\0" + path.read_bytes()).hexdigest()[:12]
    name = f"_located_{path.stem}_{key}"
    if name in sys.modules:
        return sys.modules[name]
    module_spec = importlib.util.spec_from_file_location(name, path)
    assert module_spec is not None
    assert module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    # Dataclasses and pickle look up the module by name while it executes.
    sys.modules[name] = module
    try:
        with _first_on_path(path.parent):
            module_spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise LocateError(f"Running {path} raised {describe_error(error)}.") from error
    return module


def nearest(word: str, known: Sequence[str]) -> str:
    """' Did you mean ...?' with the most similar known word; empty if none is similar."""
    near = get_close_matches(word, known, n=1, cutoff=0.6)
    return f" Did you mean {near[0]!r}?" if near else ""


def similar_file(path: Path) -> str:
    """' Did you mean ...?' with a file beside a missing one; empty if none has a similar name.

    Args:
        path: the path of a file that does not exist.
    """
    folder = path.parent
    if not folder.is_dir():
        return f" There is no folder {folder}."
    known = sorted(file.name for file in folder.iterdir() if file.is_file())
    same_kind = [name for name in known if name.endswith(path.suffix)]
    near = get_close_matches(path.name, same_kind, n=1) or get_close_matches(path.name, known, n=1)
    return f" Did you mean {near[0]!r}?" if near else ""


def _import_module(name: str) -> ModuleType:
    try:
        with _first_on_path(Path.cwd()):
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            hint = similar_file(Path(f"{error.name}.py").resolve())
            raise LocateError(
                f"There is no module {error.name!r}.{hint} Install it, start in the folder "
                "that contains it, or specify a file: 'file.py:name'."
            ) from error
        raise LocateError(
            f"Importing {name} raised {describe_error(error)}. Install the missing package."
        ) from error
    except (Exception, SystemExit) as error:
        raise LocateError(f"Importing {name} raised {describe_error(error)}.") from error


def _attribute(holder: object, name: str, spec: str) -> object:
    try:
        return getattr(holder, name)
    except AttributeError:
        known = [word for word in dir(holder) if not word.startswith("_")]
        if isinstance(holder, ModuleType):  # not what it imports, unless there is nothing else
            own = [word for word in known if _defined_in(holder, word)]
            known = own or known
        near = get_close_matches(name, known, n=1)
        if near:
            advice = f"Did you mean {near[0]!r}?"
        else:
            advice = f"It has: {', '.join(known[:20]) or 'no public names'}."
        raise LocateError(
            f"Nothing is called {name!r} in {spec.rpartition(':')[0]}. {advice}"
        ) from None


def _defined_in(module: ModuleType, name: str) -> bool:
    """Whether a module defines a name itself, as far as can be known."""
    value = getattr(module, name)
    return not isinstance(value, ModuleType) and (
        getattr(value, "__module__", module.__name__) == module.__name__
    )


@contextmanager
def _first_on_path(folder: Path) -> Iterator[None]:
    """Put a folder first on the module search path, then remove it."""
    entry = str(folder)
    sys.path.insert(0, entry)
    try:
        yield
    finally:
        if entry in sys.path:
            sys.path.remove(entry)


def describe_error(error: BaseException) -> str:
    """Type, first line of the message, file and line of an error, for use without a traceback.

    The line is the last one in the user's own code, because code that it calls, such as torch, is
    not theirs to change. If there is none, it is the last line of the traceback.
    """
    frames = traceback.extract_tb(error.__traceback__)
    user_frames = [frame for frame in frames if not _is_installed(Path(frame.filename))]
    last = (user_frames or frames)[-1]
    message = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {message} ({Path(last.filename).name}, line {last.lineno})"


def raised_outside(error: BaseException) -> bool:
    """Whether code outside of saddlepoint raised an error, such as that of a target.

    Frames of torch, numpy and the standard library are skipped: they were called by one or the
    other. Code of saddlepoint that calls torch with what a target returned is not outside.
    """
    frames = traceback.extract_tb(error.__traceback__)
    callers = [frame for frame in frames if not _is_library(Path(frame.filename))]
    return bool(callers) and not _is_own(Path(callers[-1].filename))


def _is_library(path: Path) -> bool:
    """Whether the file belongs to torch, numpy or Python itself."""
    if "site-packages" in path.parts:
        return path.parts[path.parts.index("site-packages") + 1] in ("torch", "numpy")
    return _is_standard(path)


def _is_standard(path: Path) -> bool:
    """Whether the file belongs to Python itself."""
    frozen = str(path).startswith("<frozen")
    return frozen or path.is_relative_to(sysconfig.get_paths()["stdlib"])


def _is_own(path: Path) -> bool:
    return path.is_relative_to(Path(__file__).parent)


def _is_installed(path: Path) -> bool:
    """Whether the file belongs to an installed package, to saddlepoint, or to Python itself."""
    return "site-packages" in path.parts or _is_own(path) or _is_standard(path)
