"""From a string on the command line to something that can be audited."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING

from saddlepoint.locate import LocateError, locate, told

if TYPE_CHECKING:
    from torch import Tensor, nn

    from saddlepoint.defense import Defense

_FORMS = "Expected 'file.py:factory', 'package.module:factory' or 'zoo:NAME'"


def find_target(spec: str) -> nn.Module | Defense | Callable[[Tensor], Tensor]:
    """The model that `spec` names.

    `zoo:NAME` is a trained model of the package, `zoo:FOLDER/NAME` one that `saddlepoint train` wrote. Anything else leads to a
    Python object: a model or defence is taken as it is, a factory is called without arguments.
    """
    if spec.startswith("zoo:"):
        return _from_zoo(spec.removeprefix("zoo:"))
    if ":" not in spec:
        raise LocateError(f"{_FORMS}, got {spec!r}.")
    found = locate(spec)
    return _checked(found if _is_model(found) else _made(spec, found), spec)


def _from_zoo(name: str) -> nn.Module:
    from saddlepoint import zoo

    folder, slash, name = name.rpartition("/")
    return zoo.load(name, folder) if slash else zoo.load(name)


def _made(spec: str, factory: object) -> object:
    if not callable(factory):
        raise LocateError(f"{spec} is {_kind(factory)}, expected a model, a Defense, or a factory: a function that returns one.")
    try:
        inspect.signature(factory).bind()
    except TypeError as error:
        raise LocateError(
            f"{spec} is called without arguments, and needs some ({error}). A factory takes none and returns the model: "
            f"write a function that calls {spec.rpartition(':')[2]} with what it needs, or returns it."
        ) from error
    except ValueError:  # built-in callables have no signature to look at
        pass
    try:
        return factory()
    except (Exception, SystemExit) as error:
        raise LocateError(f"Calling {spec} raised {told(error)}.") from error


def _checked(target: object, spec: str) -> nn.Module | Defense | Callable[[Tensor], Tensor]:
    if not (_is_model(target) or callable(target)):
        raise LocateError(f"{spec} returned {_kind(target)}, expected an nn.Module, a saddlepoint.Defense or a callable on images.")
    return target  # type: ignore[return-value]  # whether it is a callable on images is measured by the audit


def _is_model(thing: object) -> bool:
    from torch import nn

    from saddlepoint.defense import Defense

    return isinstance(thing, nn.Module | Defense)


def _kind(thing: object) -> str:
    return "None" if thing is None else f"a {type(thing).__name__}"
