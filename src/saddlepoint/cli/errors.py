"""Error messages: one sentence for a mistake of the user, a traceback for a bug."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer

from saddlepoint.cli.console import warn
from saddlepoint.cli.lazy_group import LazyGroup

_MISTAKE = 2  # exit code
# The message for an unknown choice; from pydantic it has a prefix.
_NOT_ONE_OF = re.compile(
    r"(Value error, )?(?P<message>'(?P<value>.*)' is not one of (?P<choices>'.*')\.)"
)
_INTERRUPTED = 130  # exit code: 128 + SIGINT
_INSTEAD = {  # what to use instead of commands that do not exist
    "compare": "`saddlepoint report RUN RUN -o FOLDER` compares finished runs. In Python, "
    "`saddlepoint.compare` audits several models on the same images.",
}


class CommandLine(LazyGroup):
    """The commands, with mistakes of the user printed as one sentence on standard error."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command; the error about an unknown one names commands of groups."""
        unknown = args[0] if args and args[0] not in self.commands else ""
        instead = _INSTEAD.get(unknown) or self._in_groups(unknown)
        if instead and not ctx.resilient_parsing:
            ctx.fail(f"No such command {unknown!r}. {instead}")
        return super().resolve_command(ctx, args)

    def _in_groups(self, name: str) -> str:
        """The commands of groups with this name, as a sentence; empty if there are none."""
        groups = [key for key, one in self.commands.items() if name in getattr(one, "commands", ())]
        found = [f"`saddlepoint {group} {name}`" for group in groups]
        return f"Did you mean {' or '.join(found)}?" if found else ""

    def invoke(self, ctx: Any) -> Any:
        """Run the command and convert its errors to messages and exit codes."""
        try:
            with _sigterm_like_ctrl_c():
                return super().invoke(ctx)
        except KeyboardInterrupt as error:
            warn("Interrupted.")
            raise typer.Exit(_INTERRUPTED) from error
        except SystemExit as error:
            # Commands end by typer.Exit, so this is code of a target, or of rich, which ends so if
            # the reader of a pipe has closed it.
            if ctx.params.get("traceback") or isinstance(error.__context__, BrokenPipeError):
                raise
            warn(f"Error: the code of the target called sys.exit({error.code!r}).")
            raise typer.Exit(_MISTAKE) from error
        except BrokenPipeError:
            raise  # the reader of the pipe has closed it: typer ends without a message
        except typer.BadParameter as error:
            error.message = _option_message(error)
            raise
        except Exception as error:
            # Compared by name: the module of this class imports torch.
            if type(error).__name__ == "Interrupted":
                warn(str(error))
                raise typer.Exit(_INTERRUPTED) from error
            if ctx.params.get("traceback") or not is_mistake(error):
                raise
            warn(f"Error: {_message(error)}")
            raise typer.Exit(_MISTAKE) from error


def _option_message(error: typer.BadParameter) -> str:
    """What is wrong with the value of an option, in the words of this package."""
    found = _NOT_ONE_OF.fullmatch(error.message)
    if found is not None:
        from saddlepoint.locate import nearest

        choices = found["choices"].replace("'", "").split(", ")
        return f"{found['message']}{nearest(found['value'], choices)}"
    problems = getattr(error.__cause__, "errors", None)
    if problems is None:
        return error.message
    from saddlepoint.runs.spec_errors import explain_value

    return explain_value(problems()[0])


@contextmanager
def _sigterm_like_ctrl_c() -> Iterator[None]:
    """End a command on SIGTERM as on Ctrl-C: with a message, and with all workers stopped."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(signum: int, frame: object) -> None:  # noqa: ARG001
    raise KeyboardInterrupt


def is_mistake(error: BaseException) -> bool:
    """Whether the error was raised for the user to read.

    This is so for errors of the operating system, for errors about memory, for error classes of
    this package, and for a ValueError that code of this package raised. Any other error, such as
    a ValueError from torch, is a bug of this package or of the user's model, and its traceback is
    needed.
    """
    if isinstance(error, OSError) or _is_memory_error(error):
        return True
    if type(error).__module__.startswith("saddlepoint."):
        return True
    innermost = error.__traceback__
    while innermost is not None and innermost.tb_next is not None:
        innermost = innermost.tb_next
    if innermost is None or not isinstance(error, ValueError):
        return False
    return str(innermost.tb_frame.f_globals.get("__name__", "")).startswith("saddlepoint.")


def _message(error: BaseException) -> str:
    if not _is_memory_error(error):
        return str(error)
    return (
        f"{str(error) or 'memory ran out.'}\nSmaller batches were tried where they can help. Close "
        "other programs, or use a machine with more memory."
    )


def _is_memory_error(error: BaseException) -> bool:
    # The others are of torch, which may not be imported.
    kinds = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return kinds or "can't allocate memory" in str(error)
