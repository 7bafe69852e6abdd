"""Shares over a scale, as inline SVG: a curve with a band around it, or several curves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from saddlepoint.reports.markup import Markup, tag

_WIDTH = 860
_HEIGHT = 300
_LEFT = 64
_RIGHT = 24
_TOP = 14
_BOTTOM = 46


class Point(NamedTuple):
    """A share with its interval, at a place."""

    at: float
    share: float
    low: float
    high: float


def curve(points: Sequence[Point], *, title: str, across: str, unit: float = 1) -> Markup:
    """Shares from 0 to 100 % over a scale that begins at zero; `unit` is how finely the scale counts, 255 for pixels of 8 bits."""
    most = points[-1].at
    line = " ".join(
        f"{'L' if k else 'M'}{_x(p.at / most):.1f} {_y(p.share):.1f}" for k, p in enumerate(points)
    )
    upper = [f"{_x(p.at / most):.1f} {_y(p.high):.1f}" for p in points]
    lower = [f"{_x(p.at / most):.1f} {_y(p.low):.1f}" for p in reversed(points)]
    told = "; ".join(
        f"at {_number(p.at, unit)}: {100 * p.share:.1f} %"
        for p in points[:: max(len(points) // 4, 1)]
    )
    return tag(
        "svg",
        tag("title", title),
        tag("desc", told),
        *_axes(most, across, unit),
        tag("path", d=f"M{' L'.join([*upper, *lower])}Z", class_="band"),
        tag("path", d=line, class_="line"),
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
        role="img",
        xmlns="http://www.w3.org/2000/svg",
    )


def lines(
    curves: Mapping[str, Sequence[tuple[float, float]]], *, title: str, across: str
) -> Markup:
    """Curves of shares over shares, both from 0 to 100 %; their names are colors of the page: kept, lost, alone."""
    paths = {
        name: " L".join(f"{_x(x):.1f} {_y(y):.1f}" for x, y in points)
        for name, points in curves.items()
    }
    ends = "; ".join(
        f"{name}: from {100 * points[0][1]:.1f} to {100 * points[-1][1]:.1f} %"
        for name, points in curves.items()
    )
    return tag(
        "svg",
        tag("title", title),
        tag("desc", ends),
        *_axes(100, across, 1),
        *(tag("path", d=f"M{path}", class_=f"line {name}") for name, path in paths.items()),
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
        role="img",
        xmlns="http://www.w3.org/2000/svg",
    )


def _axes(most: float, across: str, unit: float) -> Iterator[Markup]:
    for percent in (0, 25, 50, 75, 100):
        y = _y(percent / 100)
        yield tag("line", x1=_LEFT, x2=_WIDTH - _RIGHT, y1=y, y2=y, class_="grid")
        yield tag("text", f"{percent} %", x=_LEFT - 10, y=y + 4, text_anchor="end", class_="axis")
    for quarter in (0, 1, 2, 3, 4):
        x = _x(quarter / 4)
        yield tag("line", x1=x, x2=x, y1=_y(0), y2=_y(0) + 5, class_="grid")
        anchor = "end" if quarter == 4 else "middle"
        yield tag(
            "text",
            _number(most * quarter / 4, unit),
            x=x,
            y=_y(0) + 20,
            text_anchor=anchor,
            class_="axis",
        )
    yield tag(
        "text",
        across,
        x=(_LEFT + _WIDTH - _RIGHT) / 2,
        y=_HEIGHT - 6,
        text_anchor="middle",
        class_="axis",
    )


def _number(value: float, unit: float) -> str:
    return f"{value * unit:.3g}" + (f"/{unit:g}" if unit != 1 and value else "")


def _x(share: float) -> float:
    return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)


def _y(share: float) -> float:
    return _TOP + (1 - share) * (_HEIGHT - _TOP - _BOTTOM)
