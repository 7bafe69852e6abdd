"""Charts of results as standalone SVG files with fixed colors."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from saddlepoint.papers.result import HeatMap, Plot
from saddlepoint.reports.markup import Markup, tag

_COLORS = ("#7a7f87", "#c77700", "#2b8a3e", "#24569e", "#a3201c", "#6b3fa0")
_FONT = "system-ui, sans-serif"
# All lengths are in pixels.
_CELL = 46  # side of a heat map cell
_EDGE = 90  # space for the labels of a heat map
_WIDTH = 720
_HEIGHT = 420
_LEFT = 70
_RIGHT = 190
_TOP = 30
_BOTTOM = 56

Point = tuple[float, float]


def draw_svg(chart: HeatMap | Plot) -> Markup:
    """Draw a chart as one SVG element."""
    return _heat_map(chart) if isinstance(chart, HeatMap) else _plot(chart)


def _svg(width: float, height: float, title: str, *parts: Markup) -> Markup:
    background = tag("rect", width=width, height=height, fill="#ffffff")
    return tag(
        "svg",
        tag("title", title),
        background,
        *parts,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width:g} {height:g}",
        width=width,
        height=height,
        role="img",
        font_family=_FONT,
        font_size=12,
    )


def _heat_map(chart: HeatMap) -> Markup:
    numbers = [value for row in chart.values for value in row]
    low = min(numbers)
    high = max(numbers)
    parts = []
    for i, row in enumerate(chart.values):
        parts.append(_text(chart.down[i], _EDGE - 8, _EDGE + (i + 0.6) * _CELL, "end"))
        for j, value in enumerate(row):
            share = (value - low) / (high - low) if high > low else 0.5
            parts += _heat_cell(value, share, _EDGE + j * _CELL, _EDGE + i * _CELL)
    for j, name in enumerate(chart.across):
        parts.append(_text(name, _EDGE + (j + 0.5) * _CELL, _EDGE - 10, "middle"))
    width = _EDGE + len(chart.across) * _CELL + 20
    height = _EDGE + len(chart.down) * _CELL + 20
    middle = _EDGE + len(chart.across) * _CELL / 2
    parts.append(_text(chart.across_title, middle, _EDGE - 32, "middle"))
    parts.append(_text(chart.down_title, 10, _EDGE - 10, "start"))
    parts.append(_text(chart.title, 10, 20, "start"))
    return _svg(max(width, 420), height, chart.title, *parts)


def _heat_cell(value: float, share: float, x: float, y: float) -> tuple[Markup, Markup]:
    """Draw one cell at (x, y); `share` is the position of the value in the range of all values."""
    square = tag("rect", x=x, y=y, width=_CELL, height=_CELL, fill=_shade(share), stroke="#ffffff")
    color = "#ffffff" if share < 0.5 else "#1c2024"
    number = _text(f"{value:.1f}", x + _CELL / 2, y + 0.6 * _CELL, "middle", color)
    return square, number


def _shade(share: float) -> str:
    """Return the color of a value: dark for small values."""
    ends = ((0x1B, 0x3A, 0x6B), (0xF6, 0xE3, 0xB4))
    return "#" + "".join(f"{round(a + share * (b - a)):02x}" for a, b in zip(*ends, strict=True))


def _plot(chart: Plot) -> Markup:
    everything = [point for points in chart.points.values() for point in points]
    x0, x1 = _axis_range([point[0] for point in everything])
    y0, y1 = _axis_range([point[1] for point in everything])

    def place(point: Point) -> Point:
        across = (point[0] - x0) / (x1 - x0)
        up = (point[1] - y0) / (y1 - y0)
        x = _LEFT + across * (_WIDTH - _LEFT - _RIGHT)
        y = _HEIGHT - _BOTTOM - up * (_HEIGHT - _TOP - _BOTTOM)
        return round(x, 1), round(y, 1)

    parts = list(_axes(chart, x0, x1, y0, y1))
    for k in range(len(chart.points)):
        parts += _series(chart, k, place)
    return _svg(_WIDTH, _HEIGHT, chart.title, *parts)


def _series(chart: Plot, k: int, place: Callable[[Point], Point]) -> Iterator[Markup]:
    """Draw series number k: its line if points are joined, its points, its legend entry."""
    name, points = list(chart.points.items())[k]
    color = _COLORS[k % len(_COLORS)]
    placed = [place(point) for point in points]
    if chart.joined:
        line = " ".join(f"{x},{y}" for x, y in placed)
        yield tag("polyline", points=line, fill="none", stroke=color)
    radius = 2 if chart.joined else 3
    for x, y in placed:
        yield tag("circle", cx=x, cy=y, r=radius, fill=color, fill_opacity=0.55)
    legend = _TOP + 14 + 20 * k
    yield tag("circle", cx=_WIDTH - _RIGHT + 20, cy=legend - 4, r=4, fill=color)
    yield _text(name, _WIDTH - _RIGHT + 30, legend, "start")


def _axes(chart: Plot, x0: float, x1: float, y0: float, y1: float) -> Iterator[Markup]:
    right = _WIDTH - _RIGHT
    bottom = _HEIGHT - _BOTTOM
    for k in range(5):
        y = bottom - k / 4 * (bottom - _TOP)
        x = _LEFT + k / 4 * (right - _LEFT)
        yield tag("line", x1=_LEFT, x2=right, y1=y, y2=y, stroke="#dfe1e4")
        yield _text(f"{y0 + k / 4 * (y1 - y0):.3g}", _LEFT - 8, y + 4, "end")
        yield _text(f"{x0 + k / 4 * (x1 - x0):.2g}", x, bottom + 18, "middle")
    yield _text(chart.across, (_LEFT + right) / 2, bottom + 40, "middle")
    yield _text(f"{chart.title}: {chart.up}", _LEFT, 18, "start")


def _axis_range(values: list[float]) -> tuple[float, float]:
    """Return the range of the values plus a margin of 5 % on both sides."""
    low = min(values)
    high = max(values)
    margin = 0.05 * (high - low) or 1.0
    return low - margin, high + margin


def _text(words: str, x: float, y: float, anchor: str, color: str = "#1c2024") -> Markup:
    return tag("text", words, x=x, y=y, text_anchor=anchor, fill=color)
