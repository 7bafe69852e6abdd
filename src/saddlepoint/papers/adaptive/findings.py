"""Sentences about differences between a defense and its static network."""

from __future__ import annotations

from saddlepoint.papers.cells import by_interval
from saddlepoint.papers.result import Cell


def compared_with_static(name: str, difference: Cell | None) -> str:
    """Say whether a defense is more robust than its static network, judged by the interval.

    Args:
        name: the defense, as the subject of the sentence.
        difference: robust accuracy of the defense minus that of the static network, in points.
    """
    assert difference is not None
    assert difference.interval is not None
    verdict = by_interval(
        *difference.interval,
        above="more robust than",
        below="less robust than",
        inconclusive="not distinguishable from",
    )
    return f"{name} is {verdict} its static network ({points(difference)})"


def points(difference: Cell) -> str:
    """Format a difference in points with its interval and the paper's difference."""
    assert difference.interval is not None
    low, high = difference.interval
    paper = f"; the paper: {difference.paper:+.1f}" if difference.paper is not None else ""
    return f"{difference.mean:+.1f} points, {low:+.1f} to {high:+.1f}{paper}"
