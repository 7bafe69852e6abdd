"""Finds the model or defense that a text names."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

from torch import nn

from saddlepoint.audits.inputs import read_target
from saddlepoint.audits.target.admission import Target
from saddlepoint.defenses import Defense
from saddlepoint.locate import describe_error, locate
from saddlepoint.runs.spec import SpecError
from saddlepoint.zoo import target as zoo_target


def resolve(text: str) -> tuple[Target, str]:
    """The target that a text names, and the source code of its file.

    `zoo:NAME` is a trained model of the package. `zoo:FOLDER/NAME` is a model that
    `saddlepoint train` wrote to a folder. `FILE.onnx` is a black box. Any other text names a Python
    object. A model or a defense is used as it is; a factory is called without arguments.

    Returns:
        The target, and the text of the file that defines it (the name itself for `zoo:`).

    Raises:
        SpecError: The text has the wrong form, or the factory fails or returns no model.
        LocateError: There is no such file, module or name.
    """
    if text.startswith("zoo:"):
        folder, slash, name = text.removeprefix("zoo:").rpartition("/")
        return (zoo_target(name, folder) if slash else zoo_target(name)), text
    if text.endswith(".onnx"):
        return read_target(text), text
    if ":" not in text:
        raise SpecError(
            "a target is 'file.py:factory', 'package.module:factory', 'zoo:NAME' or a file of "
            f"ONNX, 'model.onnx'; got {text!r}.{_defined_in(Path(text))}"
        )
    found = locate(text)
    if isinstance(found, nn.Module | Defense):
        return found, _source(found)
    target = _call(text, found)
    if not (isinstance(target, nn.Module | Defense) or callable(target)):
        raise SpecError(
            f"{text} returned {_kind(target)}; a factory returns an nn.Module, a Defense or a "
            "callable on batches of images."
        )
    return target, _source(found)


def _defined_in(path: Path) -> str:
    """Targets that a Python file may define, if a path without a name was given."""
    try:
        tree = ast.parse(path.read_text())
    except (OSError, SyntaxError, ValueError):
        return ""
    names = [
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_") and not _needs(node)
    ]
    if len(names) < 2:
        return f" Did you mean {path}:{names[0]}?" if names else ""
    return f" {path} has: {', '.join(names)}."


def _needs(function: ast.FunctionDef) -> bool:
    """Whether it cannot be called without arguments."""
    arguments = function.args
    positional = len(arguments.posonlyargs) + len(arguments.args)
    return positional > len(arguments.defaults) or None in arguments.kw_defaults


def _call(text: str, factory: object) -> object:
    """What the factory returns; errors say which call failed and why."""
    if not callable(factory):
        raise SpecError(
            f"{text} is {_kind(factory)}; a target is an nn.Module, a Defense, or a factory that "
            "returns one."
        )
    try:
        inspect.signature(factory).bind()
    except TypeError as error:
        raise SpecError(
            f"{text} cannot be called without arguments ({error}). A factory takes none and "
            "returns the model: write a function without arguments that passes "
            f"{text.rpartition(':')[2]!r} what it needs."
        ) from error
    except ValueError:  # some built-in callables have no signature
        pass
    try:
        return factory()
    except (Exception, SystemExit) as error:
        raise SpecError(f"calling {text}() failed: {describe_error(error)}.") from error


def _kind(value: object) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


def _source(found: object) -> str:
    """The text of the file that defines the target: an edited file is another target."""
    try:
        path = inspect.getsourcefile(
            found if inspect.isroutine(found) or isinstance(found, type) else type(found)
        )
    except TypeError:
        return ""
    return Path(path).read_text() if path else ""
