"""Groups of commands with help pages that import as little as possible."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup, TyperOption


class LazyGroup(TyperGroup):
    """A group of commands in which the default of a switch is False instead of None.

    typer adds switches for help and completion with the default None. It imports pydantic to
    convert None, which takes a third of the time of a help page.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments of the group itself."""
        for option in self.get_params(ctx):
            if isinstance(option, TyperOption) and option.is_flag and option.default is None:
                option.default = False
        return super().parse_args(ctx, args)
