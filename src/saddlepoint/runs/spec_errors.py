"""Error messages for specifications that are not valid."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

from pydantic import AliasChoices, BaseModel, ValidationError

from saddlepoint.phrases import between_0_and_1


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


def nearest(word: str, known: Sequence[str]) -> str:
    """' Did you mean ...?' with the most similar known word; empty if none is similar."""
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f" Did you mean {near[0]!r}?" if near else ""


def _message(problem: Any, section: type[BaseModel], renamed: Mapping[str, str]) -> str:
    found = problem["input"]
    if problem["type"] == "extra_forbidden":
        return _unknown_key(str(problem["loc"][-1]), section, renamed)
    if problem["type"] == "literal_error":
        expected = str(problem["ctx"]["expected"])
        choices = expected.replace("'", "").replace(" or ", ", ").split(", ")
        return f"expected {expected}, got {found!r}.{nearest(str(found), choices)}"
    if problem["type"] == "less_than_equal" and problem["ctx"]["le"] == 1:
        return between_0_and_1(found)
    if problem["type"] == "value_error":
        return str(problem["ctx"]["error"])
    return f"{problem['msg']}, got {found!r}."


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
