"""Radii as people write them: `8/255`, `0.031`."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import NamedTuple

from saddlepoint.cli.errors import refuse


class Norm(StrEnum):
    """How the size of a perturbation is measured."""

    linf = "linf"
    l2 = "l2"
    l1 = "l1"


class Radius(NamedTuple):
    """A number and the way it was written."""

    text: str
    value: float


# What the literature on 32 x 32 colour images mostly uses.
USUAL = {Norm.linf: Radius("8/255", 8 / 255), Norm.l2: Radius("0.5", 0.5), Norm.l1: Radius("12", 12.0)}


def radius(text: str) -> Radius:
    """`8/255` or `0.031`, finite and not negative."""
    above, slash, below = text.partition("/")
    try:
        value = float(above) / float(below) if slash else float(above)
    except ZeroDivisionError:
        raise refuse(f"{text!r} divides by zero. Write a radius like 8/255 or 0.031.") from None
    except ValueError:
        raise refuse(f"{text!r} is no number. Write a radius like 8/255 or 0.031.") from None
    if not (math.isfinite(value) and value >= 0):
        raise refuse(f"{text!r} is no radius: it must be finite and not negative, like 8/255 or 0.031.")
    return Radius(text.replace(" ", ""), value)
