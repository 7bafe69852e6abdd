"""What the user sees when something goes wrong: one sentence for a mistake, a traceback for a bug."""

from __future__ import annotations

from typing import Any

import typer

from saddlepoint.cli.console import warn
from saddlepoint.cli.lazy_group import Light

_MISTAKE = 2
_INTERRUPTED = 130  # exit codes; 128 + SIGINT


class Shielded(Light):
    """Commands whose user errors are told in a sentence on standard error."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            warn("Interrupted.")
            raise typer.Exit(_INTERRUPTED) from error
        except BrokenPipeError:
            raise  # the reader of a pipe went away: typer ends quietly
        except Exception as error:
            if (
                type(error).__name__ == "Interrupted"
            ):  # by name: its module imports torch, and may not have been needed
                warn(str(error))
                raise typer.Exit(_INTERRUPTED) from error
            if ctx.params.get("traceback") or not is_mistake(error):
                raise
            warn(f"Error: {error if str(error) or not _of_memory(error) else 'memory ran out.'}")
            if _of_memory(error):
                warn(
                    "Smaller batches were tried where they can help. Close other programs, or use a machine with more memory."
                )
            raise typer.Exit(_MISTAKE) from error


def is_mistake(error: BaseException) -> bool:
    """Was this raised for the user to read? Then the system refused a file, or it is an error of our own making.

    Anything else, a ValueError from within torch say, is a bug of ours or of the user's model: its traceback is what is needed.
    """
    if (
        isinstance(error, OSError)
        or _of_memory(error)
        or type(error).__module__.startswith("saddlepoint.")
    ):
        return True
    innermost = error.__traceback__
    while innermost is not None and innermost.tb_next is not None:
        innermost = innermost.tb_next
    ours = innermost is not None and str(
        innermost.tb_frame.f_globals.get("__name__", "")
    ).startswith("saddlepoint.")
    return ours and isinstance(error, ValueError)


def _of_memory(error: BaseException) -> bool:
    return (
        isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    )  # torch's, which may not be imported
