"""Command-line options that are derived from the fields of a specification.

A field of a specification is declared once, in `saddlepoint.runs.spec`. A `Flag` in its type says
how the field appears on the command line. Everything else follows from the field: the option of
the command, its help text, its choices, the command that repeats a run, and the table of options
in the documentation.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, Union, cast, get_args, get_origin

from annotated_types import Ge
from pydantic import BaseModel
from pydantic.fields import FieldInfo


@dataclass(frozen=True)
class Flag:
    """How a field of a specification appears on the command line.

    It is an item of the field's `Annotated` type. A field without a `Flag` has no option: it can
    be set in `spec.toml` only.
    """

    name: str = ""  # of the option; by default `--` and the name of the field
    panel: str = ""  # section of the help page; by default the first one
    metavar: str = ""  # placeholder for the value on the help page; by default its type
    default: str = ""  # text for the default, where the default is not one fixed value
    help: str = ""  # help text, where the description of the field does not fit the option
    always: bool = False  # write it into the command of a run even if it has its default value
    read: Callable[[str], Any] | None = None  # text of the option -> value of the field
    write: Callable[[Any], str | None] | None = None  # value -> text; None: no text can say it


@dataclass(frozen=True)
class Option:
    """One option of the command line and the field that it sets."""

    path: tuple[str, ...]  # keys of the field, from the outermost section: ("threat", "norm")
    field: FieldInfo
    flag: Flag

    @property
    def name(self) -> str:
        """The option as it is typed, for example `--batch-size`."""
        return self.flag.name or "--" + self.path[-1].replace("_", "-")

    @property
    def key(self) -> str:
        """The field as error messages and the documentation write it, for example `threat.norm`."""
        return ".".join(self.path)

    @property
    def parameter(self) -> str:
        """A Python identifier that is unique among the options of a specification."""
        return "_".join(self.path)

    @property
    def help(self) -> str:
        """The help text, in full sentences."""
        return self.flag.help or self.field.description or ""

    @property
    def type(self) -> Any:
        """The type of the value without None: `bool`, `int`, `float`, `str` or a `Literal`."""
        if self.flag.read is not None:
            return str
        members = get_args(self.field.annotation)
        if get_origin(self.field.annotation) in (Union, types.UnionType):
            return next(member for member in members if member is not types.NoneType)
        return self.field.annotation

    @property
    def choices(self) -> tuple[str, ...]:
        """The values of a `Literal`; empty for other types."""
        return get_args(self.type) if get_origin(self.type) is Literal else ()

    @property
    def minimum(self) -> int | None:
        """The smallest whole number that is allowed, if the field declares one."""
        if self.type is not int:
            return None
        bounds = [item.ge for item in self.field.metadata if isinstance(item, Ge)]
        return cast(int, bounds[0]) if bounds else None

    @property
    def is_switch(self) -> bool:
        """Whether the option takes no value: given, it inverts the default of a Boolean field."""
        return self.type is bool

    @property
    def default(self) -> str:
        """The default as text; empty if there is none."""
        value = self.field.default
        return self.flag.default or ("" if value is None or self.is_switch else str(value))

    def words(self, value: Any) -> list[str] | None:
        """The words of a command line that give the field this value.

        Returns:
            An empty list if the option can be left out, None if no option can express the value.
        """
        if value == self.field.default and not self.flag.always:
            return []
        if self.is_switch:
            return [self.name]
        text = self.flag.write(value) if self.flag.write else str(value)
        return None if text is None else [self.name, text]


def options(model: type[BaseModel]) -> tuple[Option, ...]:
    """The options of a specification, in the order of its fields, with those of its sections."""
    return tuple(_options(model, ()))


def option_words(spec: BaseModel) -> list[str] | None:
    """The options that lead to this specification, as the words of a command line.

    Returns:
        The words, or None if the specification has a value that no option can express.
    """
    words: list[str] = []
    for option in options(type(spec)):
        value: Any = spec
        for key in option.path:
            value = getattr(value, key)
        added = option.words(value)
        if added is None:
            return None
        words += added
    return words


def _options(model: type[BaseModel], path: tuple[str, ...]) -> Iterator[Option]:
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _options(field.annotation, (*path, name))
        flag = next((item for item in field.metadata if isinstance(item, Flag)), None)
        if flag is not None:
            yield Option((*path, name), field, flag)
