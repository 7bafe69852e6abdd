"""Radii as numbers or as text: 0.031, "0.031" or "8/255"."""

from __future__ import annotations

import math


def parse_radius(value: float | str) -> float:
    """The radius that a number or a text stands for.

    Args:
        value: a number >= 0, or a text: a number or a fraction such as "8/255".

    Raises:
        ValueError: it is neither.
    """
    if not isinstance(value, str):
        return float(value)
    top, slash, bottom = value.partition("/")
    try:
        radius = float(top) / float(bottom) if slash else float(value)
    except (ValueError, ZeroDivisionError, OverflowError):
        radius = math.nan
    if not (math.isfinite(radius) and radius >= 0):
        raise ValueError(
            f"the radius must be a number or a fraction such as 8/255 or 0.031, got {value[:40]!r}."
        )
    return radius
