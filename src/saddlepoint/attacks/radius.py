"""Radii as numbers or as text: 0.031, "0.031" or "8/255"."""

from __future__ import annotations

import math


def parse_radius(value: float | str) -> float:
    """The radius that a number or a text stands for.

    Args:
        value: a number >= 0, or a text: a number or a fraction such as "8/255".

    Raises:
        ValueError: it is neither, negative, or a fraction with a zero denominator.
    """
    if not isinstance(value, str):
        return float(value)
    top, slash, bottom = value.partition("/")
    found = repr(value[:40])
    try:
        radius = float(top) / float(bottom) if slash else float(value)
    except ZeroDivisionError:
        raise ValueError(
            "the radius must be a number or a fraction such as 8/255 or 0.031, got a fraction with "
            f"a zero denominator, {found}."
        ) from None
    except (ValueError, OverflowError):
        radius = math.nan
    if not math.isfinite(radius):
        raise ValueError(
            f"the radius must be a number or a fraction such as 8/255 or 0.031, got {found}."
        )
    if radius < 0:
        raise ValueError(
            f"the radius must not be negative, got {found}. Write a number such as 0.031 or a "
            "fraction such as 8/255."
        )
    return radius
