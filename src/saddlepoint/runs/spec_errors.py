"""Error messages for specifications that are not valid."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

from pydantic import AliasChoices, BaseModel, ValidationError

from saddlepoint.locate import nearest
from saddlepoint.phrases import between_0_and_1

# Kinds of problems with a text -> what it must be.
_NUMBERS = {"int_parsing": "a whole number", "float_parsing": "a number"}
# Kinds of problems with a bound -> how it is said, and the key of the bound.
_BOUNDS = {
    "greater_than_equal": ("of at least", "ge"),
    "greater_than": ("above", "gt"),
    "less_than_equal": ("of at most", "le"),
    "less_than": ("below", "lt"),
}


class SpecError(ValueError):
    """A specification is not valid. The message names the key, its value, and what is allowed."""


def explain(
    error: ValidationError,
    model: type[BaseModel],
    *,
    names: Mapping[str, str],
    renamed: Mapping[str, str],
) -> Iterator[str]:
    """One line for each problem that pydantic found.

    Args:
        error: What pydantic raised.
        model: The model that was validated.
        names: What to call a key, for example `{"threat.norm": "--norm"}`; by default its path.
        renamed: Keys of an earlier version of the format -> their present names.
    """
    for problem in error.errors():
        place = ".".join(str(part) for part in problem["loc"])
        section = _model_at(model, problem["loc"][:-1])
        name = f"{names.get(place, place)}: " if place else ""
        yield f"  {name}{_message(problem, section, renamed)}"


def explain_value(problem: Any) -> str:
    """What was expected and found, for a problem that pydantic found with one value."""
    found = problem["input"]
    if problem["type"] == "less_than_equal" and problem["ctx"]["le"] == 1:
        return between_0_and_1(float(found))
    if problem["type"] in _NUMBERS:
        return f"expected {_NUMBERS[problem['type']]}, got {found!r}."
    if problem["type"] in _BOUNDS:
        words, key = _BOUNDS[problem["type"]]
        bound = problem["ctx"][key]
        shown = f"{bound:g}" if isinstance(bound, float) else bound
        return f"expected a number {words} {shown}, got {found!r}."
    if problem["type"] == "value_error":
        return str(problem["ctx"]["error"])
    return f"{problem['msg']}, got {found!r}."


def _message(problem: Any, section: type[BaseModel], renamed: Mapping[str, str]) -> str:
    found = problem["input"]
    if problem["type"] == "extra_forbidden":
        return _unknown_key(str(problem["loc"][-1]), section, renamed)
    if problem["type"] == "literal_error":
        expected = str(problem["ctx"]["expected"])
        choices = expected.replace("'", "").replace(" or ", ", ").split(", ")
        return f"expected {expected}, got {found!r}.{nearest(str(found), choices)}"
    return explain_value(problem)


def _unknown_key(key: str, section: type[BaseModel], renamed: Mapping[str, str]) -> str:
    known = list(section.model_fields)
    if renamed.get(key) in known:
        return f"this key is now called {renamed[key]!r}."
    hint = nearest(key, [*known, *_other_names(section)])
    return f"unknown key.{hint} Known here: {', '.join(known)}."


def _other_names(section: type[BaseModel]) -> Iterator[str]:
    """The names that a field accepts besides its own."""
    for field in section.model_fields.values():
        if isinstance(field.validation_alias, AliasChoices):
            yield from map(str, field.validation_alias.choices[1:])


def _model_at(model: type[BaseModel], place: Sequence[str | int]) -> type[BaseModel]:
    """The model of the section at `place`; for a list of sections, the model of its items."""
    if not place:
        return model
    annotation: Any = model.model_fields[str(place[0])].annotation
    section: type[BaseModel] = next(iter(get_args(annotation)), annotation)
    return section
