"""Groups of commands whose help pages load as little as they can."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup, TyperOption


class Light(TyperGroup):
    """Commands whose unused flags are False.

    Those that typer adds, for help and for completion, are None, and to convert a None it loads pydantic: a third of the time
    that a help page takes.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        for option in self.get_params(ctx):
            if isinstance(option, TyperOption) and option.is_flag and option.default is None:
                option.default = False
        return super().parse_args(ctx, args)
