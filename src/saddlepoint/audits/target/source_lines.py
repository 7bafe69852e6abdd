"""The line of the target's code that runs a tensor operation."""

from __future__ import annotations

import linecache
import sys
from dataclasses import dataclass, field
from pathlib import PurePath
from types import CodeType, FrameType, FunctionType
from typing import Any

_DECORATOR = "decorate_context"  # the wrapper that torch puts around a decorated function
_LIBRARIES = ("torch", "numpy", "contextlib")
_RECORDERS = "saddlepoint.audits.target"  # modes and wrappers, which call what the target calls
# Packages of this library that run a target; the others contain targets.
_MACHINERY = ("audits", "attacks", "defenses", "evaluation", "gradients", "rng", "runs", "solvers")


@dataclass(frozen=True)
class SourceLine:
    """A line of code: "model.py:41", or the name of a function whose source is not available."""

    place: str
    text: str = field(default="", compare=False)  # the code; empty if it is not available

    def __str__(self) -> str:
        return f"{self.place}: `{self.text}`" if self.text else self.place


def calling_line() -> SourceLine | None:
    """The innermost line on the stack outside torch; None if this library runs it by itself.

    What a decorator of torch does, such as `@torch.no_grad()`, belongs to the line of the decorator
    and not to the caller, which may be torch or this library.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _is_library(frame):
        decorated = frame.f_locals.get("func") if frame.f_code.co_name == _DECORATOR else None
        if isinstance(decorated, FunctionType) and not _is_library_name(decorated.__module__):
            return _line(
                decorated.__code__, decorated.__code__.co_firstlineno, decorated.__globals__
            )
        frame = frame.f_back
    if frame is None or _is_machinery(frame):
        return None
    return _line(frame.f_code, frame.f_lineno, frame.f_globals)


def _line(code: CodeType, number: int, names: dict[str, Any]) -> SourceLine:
    text = linecache.getline(code.co_filename, number, names).strip()
    if not text:
        return SourceLine(code.co_qualname)
    return SourceLine(f"{PurePath(code.co_filename).name}:{number}", text)


def _is_library(frame: FrameType) -> bool:
    return _is_library_name(frame.f_globals.get("__name__", ""))


def _is_library_name(name: str) -> bool:
    return name.split(".")[0] in _LIBRARIES or name.startswith(_RECORDERS)


def _is_machinery(frame: FrameType) -> bool:
    names = frame.f_globals.get("__name__", "").split(".")
    return names[0] == "saddlepoint" and len(names) > 1 and names[1] in _MACHINERY
