"""From the text that names a target to the target."""

from __future__ import annotations

import inspect
from pathlib import Path

from torch import nn

from saddlepoint.audits.target.admission import Target
from saddlepoint.defenses import Defense
from saddlepoint.locate import describe_error, locate
from saddlepoint.runs.spec import SpecError
from saddlepoint.zoo import target as of_zoo


def resolve(text: str) -> tuple[Target, str]:
    """The target that a text names, and its source text.

    `zoo:NAME` is a trained model of the package, `zoo:FOLDER/NAME` one that was trained into a folder. Anything else leads to a
    Python object: a model or defense is taken as it is, a factory is called without arguments.
    """
    if text.startswith("zoo:"):
        folder, slash, name = text.removeprefix("zoo:").rpartition("/")
        return (of_zoo(name, folder) if slash else of_zoo(name)), text
    if ":" not in text:
        raise SpecError(
            f"a target is 'file.py:factory', 'package.module:factory' or 'zoo:NAME', got {text!r}."
        )
    found = locate(text)
    if isinstance(found, nn.Module | Defense):
        return found, _source(found)
    made = _made(text, found)
    if not (isinstance(made, nn.Module | Defense) or callable(made)):
        raise SpecError(
            f"{text} returned {_kind(made)}; a factory returns an nn.Module, a Defense or a callable on batches of images."
        )
    return made, _source(found)


def _made(text: str, factory: object) -> object:
    if not callable(factory):
        raise SpecError(
            f"{text} is {_kind(factory)}; a target is an nn.Module, a Defense, or a factory that returns one."
        )
    try:
        inspect.signature(factory).bind()
    except TypeError as error:
        raise SpecError(
            f"{text} cannot be called without arguments ({error}). A factory takes none and returns the model: write one that "
            f"gives {text.rpartition(':')[2]!r} what it needs, or that returns it."
        ) from error
    except ValueError:  # some built-in callables have no signature to look at
        pass
    try:
        return factory()
    except (Exception, SystemExit) as error:
        raise SpecError(f"calling {text}() failed: {describe_error(error)}.") from error


def _kind(thing: object) -> str:
    return "None" if thing is None else f"a {type(thing).__name__}"


def _source(thing: object) -> str:
    """The text of the file in which the target is defined: editing it makes another target."""
    try:
        path = inspect.getsourcefile(
            thing if inspect.isroutine(thing) or isinstance(thing, type) else type(thing)
        )
    except TypeError:
        return ""
    return Path(path).read_text() if path else ""
