"""Curves of accuracies and other shares as inline SVG."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from saddlepoint import phrases
from saddlepoint.reports.markup import Markup, join, svg, tag


@dataclass(frozen=True)
class _Frame:
    """A coordinate system with its margins around the curves."""

    class_: str  # of the figure; the page shows one of two drawings
    width: int
    height: int
    left: int
    right: int
    top: int = 14
    bottom: int = 46

    def x(self, share: float) -> float:
        return self.left + share * (self.width - self.left - self.right)

    def y(self, share: float) -> float:
        return self.top + (1 - share) * (self.height - self.top - self.bottom)

    def at(self, x: float, y: float) -> str:
        return f"{self.x(x):.1f} {self.y(y):.1f}"


_WIDE = _Frame("wide-screen", 860, 300, 88, 24)
_NARROW = _Frame("small-screen", 400, 260, 50, 16)
_ONLY = _Frame("", 860, 300, 88, 24)


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

    There are two drawings, of which the page shows one, as for bars.

    Args:
        points: The curve, from left to right. The x axis begins at 0 and ends at the last point.
        title: Title of the figure.
        x_label: Label of the x axis.
        denominator: Write x values as fractions with this denominator, for example 255 for pixels
            of 8 bits. Default: decimal numbers.
    """
    return join(
        *(_accuracy_curve(points, title, x_label, denominator, one) for one in (_WIDE, _NARROW))
    )


def _accuracy_curve(
    points: Sequence[CurvePoint], title: str, x_label: str, denominator: int, frame: _Frame
) -> Markup:
    end = points[-1].x
    line = " L".join(frame.at(p.x / end, p.value) for p in points)
    upper = [frame.at(p.x / end, p.high) for p in points]
    lower = [frame.at(p.x / end, p.low) for p in reversed(points)]
    description = "; ".join(
        f"at {_number(p.x, denominator)}: {phrases.percent(p.value)}"
        for p in points[:: max(len(points) // 4, 1)]
    )
    return svg(
        title,
        description,
        *_axes(end, x_label, denominator, frame),
        tag("path", d=f"M{' L'.join([*upper, *lower])}Z", class_="band"),
        tag("path", d=f"M{line}", class_="line"),
        width=frame.width,
        height=frame.height,
        class_=frame.class_,
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
        color: " L".join(_ONLY.at(x, y) for x, y in points) for color, points in curves.items()
    }
    description = "; ".join(
        f"{color}: from {phrases.percent(points[0][1])} to {phrases.percent(points[-1][1])}"
        for color, points in curves.items()
    )
    return svg(
        title,
        description,
        *_axes(100, x_label, 1, _ONLY),
        *(tag("path", d=f"M{path}", class_=f"line {color}") for color, path in paths.items()),
        width=_ONLY.width,
        height=_ONLY.height,
    )


def _axes(end: float, x_label: str, denominator: int, frame: _Frame) -> Iterator[Markup]:
    for percent in (0, 25, 50, 75, 100):
        y = frame.y(percent / 100)
        yield tag("line", x1=frame.left, x2=frame.x(1), y1=y, y2=y, class_="grid")
        yield tag(
            "text", f"{percent} %", x=frame.left - 10, y=y + 4, text_anchor="end", class_="axis"
        )
    for quarter in (0, 1, 2, 3, 4):
        x = frame.x(quarter / 4)
        yield tag("line", x1=x, x2=x, y1=frame.y(0), y2=frame.y(0) + 5, class_="grid")
        yield tag(
            "text",
            _number(end * quarter / 4, denominator),
            x=x,
            y=frame.y(0) + 20,
            text_anchor="end" if quarter == 4 else "middle",
            class_="axis",
        )
    middle = frame.x(0.5)
    yield tag("text", x_label, x=middle, y=frame.height - 6, text_anchor="middle", class_="axis")


def _number(value: float, denominator: int) -> str:
    fraction = f"/{denominator}" if denominator != 1 and value else ""
    return f"{value * denominator:.3g}{fraction}"
