"""Curves of accuracies and other shares as inline SVG."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from saddlepoint import phrases
from saddlepoint.reports.markup import Markup, svg, tag

_WIDTH = 860
_HEIGHT = 300
_LEFT = 88
_RIGHT = 24
_TOP = 14
_BOTTOM = 46


class CurvePoint(NamedTuple):
    """An accuracy in [0, 1] with its confidence interval, at a position on the x axis."""

    x: float
    value: float
    low: float
    high: float


def accuracy_curve(
    points: Sequence[CurvePoint], *, title: str, x_label: str, denominator: int = 1
) -> Markup:
    """Return one curve from 0 to 100 % with a band for its confidence intervals.

    Args:
        points: The curve, from left to right. The x axis begins at 0 and ends at the last point.
        title: Title of the figure.
        x_label: Label of the x axis.
        denominator: Write x values as fractions with this denominator, for example 255 for pixels
            of 8 bits. Default: decimal numbers.
    """
    end = points[-1].x
    line = " L".join(f"{_x(p.x / end):.1f} {_y(p.value):.1f}" for p in points)
    upper = [f"{_x(p.x / end):.1f} {_y(p.high):.1f}" for p in points]
    lower = [f"{_x(p.x / end):.1f} {_y(p.low):.1f}" for p in reversed(points)]
    description = "; ".join(
        f"at {_number(p.x, denominator)}: {phrases.percent(p.value)}"
        for p in points[:: max(len(points) // 4, 1)]
    )
    return svg(
        title,
        description,
        *_axes(end, x_label, denominator),
        tag("path", d=f"M{' L'.join([*upper, *lower])}Z", class_="band"),
        tag("path", d=f"M{line}", class_="line"),
        width=_WIDTH,
        height=_HEIGHT,
    )


def share_curves(
    curves: Mapping[str, Sequence[tuple[float, float]]], *, title: str, x_label: str
) -> Markup:
    """Return several curves of shares over shares, both axes from 0 to 100 %.

    Args:
        curves: The points (x, y) in [0, 1] of each curve, by its color: primary, secondary, marker.
        title: Title of the figure.
        x_label: Label of the x axis.
    """
    paths = {
        color: " L".join(f"{_x(x):.1f} {_y(y):.1f}" for x, y in points)
        for color, points in curves.items()
    }
    description = "; ".join(
        f"{color}: from {phrases.percent(points[0][1])} to {phrases.percent(points[-1][1])}"
        for color, points in curves.items()
    )
    return svg(
        title,
        description,
        *_axes(100, x_label, 1),
        *(tag("path", d=f"M{path}", class_=f"line {color}") for color, path in paths.items()),
        width=_WIDTH,
        height=_HEIGHT,
    )


def _axes(end: float, x_label: str, denominator: int) -> Iterator[Markup]:
    for percent in (0, 25, 50, 75, 100):
        y = _y(percent / 100)
        yield tag("line", x1=_LEFT, x2=_WIDTH - _RIGHT, y1=y, y2=y, class_="grid")
        yield tag("text", f"{percent} %", x=_LEFT - 10, y=y + 4, text_anchor="end", class_="axis")
    for quarter in (0, 1, 2, 3, 4):
        x = _x(quarter / 4)
        yield tag("line", x1=x, x2=x, y1=_y(0), y2=_y(0) + 5, class_="grid")
        yield tag(
            "text",
            _number(end * quarter / 4, denominator),
            x=x,
            y=_y(0) + 20,
            text_anchor="end" if quarter == 4 else "middle",
            class_="axis",
        )
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    yield tag("text", x_label, x=middle, y=_HEIGHT - 6, text_anchor="middle", class_="axis")


def _number(value: float, denominator: int) -> str:
    fraction = f"/{denominator}" if denominator != 1 and value else ""
    return f"{value * denominator:.3g}{fraction}"


def _x(share: float) -> float:
    return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)


def _y(share: float) -> float:
    return _TOP + (1 - share) * (_HEIGHT - _TOP - _BOTTOM)
