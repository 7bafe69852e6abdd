"""What the user sees when something goes wrong: one sentence for a mistake, a traceback for a bug."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any

import typer
from typer.core import TyperGroup

from saddlepoint.cli.text import warn

_MISTAKE, _INTERRUPTED = 2, 130  # exit codes; 128 + SIGINT


class Shielded(TyperGroup):
    """Commands whose user errors are told in a sentence on standard error."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            warn("Interrupted. What was not finished is not written.")
            raise typer.Exit(_INTERRUPTED) from error
        except BrokenPipeError:
            raise  # the reader of a pipe went away: typer ends quietly
        except Exception as error:
            if ctx.params.get("traceback") or not is_mistake(error):
                raise
            warn(f"Error: {error}")
            raise typer.Exit(_MISTAKE) from error


def is_mistake(error: BaseException) -> bool:
    """Was this raised for the user to read? Then our own code raised it, or the system refused a file.

    A ValueError from within torch, say, is a bug: of ours, or of the user's model; either way its traceback is what is needed.
    """
    if isinstance(error, OSError):
        return True
    return isinstance(error, ValueError | FloatingPointError) and _module(error.__traceback__).startswith("saddlepoint.")


def _module(trace: TracebackType | None) -> str:
    """The module of the innermost frame."""
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return str(trace.tb_frame.f_globals.get("__name__", "")) if trace is not None else ""


def refuse(message: str) -> typer.BadParameter:
    """The error for an option or argument that cannot be understood."""
    return typer.BadParameter(message)


def interactive() -> bool:
    """Is somebody watching? Then there are bars; a log gets lines."""
    return sys.stderr.isatty()
