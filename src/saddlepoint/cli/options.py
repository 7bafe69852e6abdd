"""Options of the commands, made from the fields of a specification.

An option of the threat model, the budget or the data is a field of `saddlepoint.runs.spec`, or of
`saddlepoint.runs.game_spec`. This module turns the fields into options of typer, and the options
that were given into a specification. To add an option, add a field.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import typer
from typer.core import TyperCommand

if TYPE_CHECKING:
    from saddlepoint.runs.game_spec import GameSpec
    from saddlepoint.runs.options import Option
    from saddlepoint.runs.spec import RunSpec

# The usual radii in the literature on color images of 32 x 32 pixels.
DEFAULT_RADIUS = {"linf": "8/255", "l2": "0.5", "l1": "12"}

Values = dict[str, Any]
LoadOptions = Callable[[], "tuple[Option, ...]"]


class SpecCommand(TyperCommand):
    """A command with options of a specification besides the options of its function.

    The options are made when the command is parsed or its help page is printed. Other help pages
    therefore do not wait until pydantic and the specification are imported. The function receives
    the values in `ctx.obj`, as a nested dictionary with the keys of the specification.
    """

    load_options: ClassVar[LoadOptions]
    _options: tuple[Option, ...] | None = None

    def get_params(self, ctx: Any) -> list[Any]:
        """All parameters: arguments, options of the specification, then the command's own."""
        if self._options is None:
            self._options = type(self).load_options()
            made = _parameters(self._options)
            arguments = [param for param in self.params if param.param_type_name == "argument"]
            others = [param for param in self.params if param.param_type_name != "argument"]
            self.params = [*arguments, *made, *others]
        return super().get_params(ctx)

    def invoke(self, ctx: Any) -> Any:
        """Call the function of the command with the values of the specification in `ctx.obj`."""
        chosen = self._options or ()
        given = {option.parameter: ctx.params.pop(option.parameter) for option in chosen}
        ctx.obj = _values(chosen, given)
        return super().invoke(ctx)


def with_options(load: LoadOptions) -> type[SpecCommand]:
    """The class of a command that has these options: `app.command("audit", cls=...)`."""
    return type("SpecCommand", (SpecCommand,), {"load_options": staticmethod(load)})


def audit_options() -> tuple[Option, ...]:
    """The options of `saddlepoint audit`: all fields of the specification of an audit."""
    from saddlepoint.runs.options import options
    from saddlepoint.runs.spec import RunSpec

    return options(RunSpec)


def game_options() -> tuple[Option, ...]:
    """The options of `saddlepoint game`: all fields of the specification of a game."""
    from saddlepoint.runs.game_spec import GameSpec
    from saddlepoint.runs.options import options

    return options(GameSpec)


def some_audit_options(*keys: str) -> LoadOptions:
    """Only the options of an audit with these keys, such as `threat.norm`."""

    def load() -> tuple[Option, ...]:
        return tuple(option for option in audit_options() if option.key in keys)

    return load


def audit_spec(target: str, values: Values) -> RunSpec:
    """The specification of the audit that was requested on the command line.

    Raises:
        SpecError: An option has a value that is not valid; the message names the option.
    """
    from saddlepoint.runs.spec import RunSpec, validate

    requested = with_defaults({"target": target, **values})
    return validate(RunSpec, requested, "the command line", _names(audit_options()))


def game_spec(target: str, values: Values) -> GameSpec:
    """The specification of the game that was requested on the command line.

    Raises:
        SpecError: An option has a value that is not valid; the message names the option.
    """
    from saddlepoint.runs.game_spec import GameSpec
    from saddlepoint.runs.spec import validate

    requested = with_defaults({"target": target, **values})
    return validate(GameSpec, requested, "the command line", _names(game_options()))


def with_defaults(values: Values) -> Values:
    """The values with the defaults that depend on other values.

    The radius depends on the norm. Of the user's own data, all images are taken; of a named data
    set, the number in the specification.
    """
    from saddlepoint.data import SOURCES

    data = dict(values["data"])
    threat = dict(values["threat"])
    threat.setdefault("radius", DEFAULT_RADIUS[threat["norm"]])
    if data["name"] not in SOURCES:
        data.setdefault("n", "all")
    return {**values, "data": data, "threat": threat}


def options_table(command: Literal["audit", "game"] = "audit") -> str:
    """The options of a command as a Markdown table, for the documentation."""
    load = {"audit": audit_options, "game": game_options}[command]
    lines = [
        "| option | key in the specification | values | default | meaning |",
        "|---|---|---|---|---|",
    ]
    for option in load():
        cells = (
            f"`{option.name}`",
            f"`{option.key}`",
            _allowed(option),
            _default(option),
            option.help,
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _allowed(option: Option) -> str:
    if option.is_switch:
        return f"no value; sets the key to `{str(not option.field.default).lower()}`"
    if option.choices:
        return ", ".join(f"`{choice}`" for choice in option.choices)
    return option.flag.metavar or {int: "whole number", float: "number", str: "text"}[option.type]


def _default(option: Option) -> str:
    if option.is_switch:
        return f"`{str(option.field.default).lower()}`"
    return option.flag.default or (f"`{option.default}`" if option.default else "none")


def _names(options: Iterable[Option]) -> dict[str, str]:
    return {option.key: option.name for option in options}


def _parameters(options: Iterable[Option]) -> list[Any]:
    """The options as parameters of typer, made from a function with such a signature."""

    def command(**_: Any) -> None: ...

    parameters = [_parameter(option) for option in options]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    app = typer.Typer(add_completion=False, rich_markup_mode="rich")
    app.command()(command)
    return list(typer.main.get_command(app).params)


def _parameter(option: Option) -> inspect.Parameter:
    fixed = None if option.flag.default else option.field.default
    info = typer.Option(
        option.name,
        help=option.help,
        metavar=option.flag.metavar or None,
        show_default=option.flag.default or True,
        min=option.minimum,
        case_sensitive=False,
        rich_help_panel=option.flag.panel or None,
    )
    return inspect.Parameter(
        option.parameter,
        inspect.Parameter.KEYWORD_ONLY,
        default=False if option.is_switch else fixed,
        annotation=Annotated[bool if option.is_switch else option.type | None, info],
    )


def _values(options: Iterable[Option], given: Mapping[str, Any]) -> Values:
    """The given values as nested sections. Options without a value are left out."""
    values: Values = {}
    for option in options:
        value = given[option.parameter]
        if value is None:
            continue
        if option.is_switch:
            value = value != option.field.default
        elif option.flag.read is not None:
            value = option.flag.read(value)
        section = values
        for key in option.path[:-1]:
            section = section.setdefault(key, {})
        section[option.path[-1]] = value
    return values
