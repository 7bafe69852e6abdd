"""A caveat for findings from few images."""

from __future__ import annotations

import math

from saddlepoint.phrases import count

_PRECISE = 3.0  # points; with a narrower interval no caveat is needed


def few_images_caveat(n: int) -> str | None:
    """The uncertainty of findings from n images; None if it is below three points.

    The 95 % interval of an accuracy p over n images has the half-width 1.96 sqrt(p (1 - p) / n),
    which is largest at p = 1/2.

    Args:
        n: number of images per accuracy.
    """
    half = interval_half_width(50.0, n)
    if half <= _PRECISE:
        return None
    return (
        f"These findings come from {count(n, 'image')}: an accuracy of 50 % has a 95 % interval "
        f"from {50 - half:.0f} to {50 + half:.0f} %, so smaller differences may be chance."
    )


def interval_half_width(percent: float, n: int) -> float:
    """Half the width of the 95 % interval of an accuracy over n images, in points."""
    p = min(max(percent / 100, 0.0), 1.0)
    return 196 * math.sqrt(p * (1 - p) / n)
