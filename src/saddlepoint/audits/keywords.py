"""Errors for keyword arguments that do not exist, with the argument that was probably meant."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from saddlepoint.phrases import radius

_P = ParamSpec("_P")
_R = TypeVar("_R")

_RADIUS = (
    ("threat", "The radius is part of the threat model: threat=sp.Linf({value}), sp.L2 or sp.L1."),
    ("radii", "Pass all radii: radii=[{value}]."),
)
_NORM = (
    ("norm", "The norm is sp.Linf, sp.L2 or sp.L1: norm=sp.L2."),
    ("threat", "The norm is part of the threat model: threat=sp.L2(0.5)."),
)
_ATTACKS = (
    ("adversaries", "Pass attacks as adversaries=[sp.Direct('pgd', sp.PGD(steps=40))]."),
    ("method", "Pass the attack as method=sp.PGD(steps=10)."),
)
_STEPS = (
    ("method", "Steps belong to the attack: method=sp.PGD(steps={value})."),
    (
        "adversaries",
        "Steps belong to an attack: adversaries=[sp.Direct('pgd', sp.PGD(steps={value}))].",
    ),
)
_TARGET = (
    ("target", "The model is the first argument: pass it without a name, or as target=."),
    ("targets", "Pass the models by name: sp.compare({{'a': net_a, 'b': net_b}}, x, y)."),
)
_IMAGES = (("x", "Images, a data loader or a dataset are the second argument, x."),)
_LABELS = (("y", "Labels are the third argument, y."),)
_PROGRESS = (("progress", "Use progress=True or progress=False."),)
# Names of other libraries: for each, the arguments that may be meant, with an advice.
_MEANT: Mapping[str, tuple[tuple[str, str], ...]] = {
    "eps": _RADIUS,
    "epsilon": _RADIUS,
    "radius": _RADIUS,
    "norm": _NORM,
    "p": _NORM,
    "attack": _ATTACKS,
    "attacks": _ATTACKS,
    "attacks_to_run": _ATTACKS,
    "steps": _STEPS,
    "n_iter": _STEPS,
    "nb_iter": _STEPS,
    "model": _TARGET,
    "models": _TARGET,
    "net": _TARGET,
    "data": _IMAGES,
    "dataset": _IMAGES,
    "dataloader": _IMAGES,
    "loader": _IMAGES,
    "images": _IMAGES,
    "labels": _LABELS,
    "verbose": _PROGRESS,
}


def explained(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """The function, which names the argument that was probably meant if one does not exist."""
    known = [*inspect.signature(function).parameters]

    @wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        for name, value in kwargs.items():
            if name not in known:
                advice = _advice(name, value, known)
                raise TypeError(
                    f"{function.__name__}() got an unexpected keyword argument {name!r}. {advice}"
                )
        return function(*args, **kwargs)

    return call


def _advice(name: str, value: Any, known: list[str]) -> str:
    for argument, advice in _MEANT.get(name, ()):
        if argument in known:
            return advice.format(value=_shown(value))
    near = get_close_matches(name, known, n=1)
    if near:
        return f"Did you mean {near[0]!r}?"
    return f"Its arguments are: {', '.join(known)}."


def _shown(value: Any) -> str:
    """A value as it is written in code: `8/255` for a radius that is such a fraction."""
    return radius(value) if isinstance(value, float) and 0 < value < 1 else repr(value)
