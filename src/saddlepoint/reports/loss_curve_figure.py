"""The loss curves of several attacks below each other, two panels per attack, as inline SVG."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from saddlepoint.phrases import count
from saddlepoint.reports.figures import WIDTH, truncated
from saddlepoint.reports.markup import Markup, svg, tag

_HEAD = 26
_ROW = 68
_PANEL_HEIGHT = 42
_LEFT = (230, 520)  # x coordinates at which the left panel of a row begins and ends
_RIGHT = (600, 850)  # the same for the right panel
_LABEL_LENGTH = 17  # characters that fit left of the panels

Point = tuple[int, float]  # forward passes, and the value reached after them


class LossCurveRow(NamedTuple):
    """The curves of one attack over the forward passes spent."""

    label: str
    objective: Sequence[Point]  # its own scale per attack; empty if the attack sees no scores
    misclassified: Sequence[Point]  # share of images, from 0 to 1
    text: str  # the same in words, for screen readers


class _Panel(NamedTuple):
    """The place and the scale of one curve."""

    span: tuple[int, int]  # x coordinates of the left and the right end
    top: int  # y coordinate
    last: int  # passes at the right end
    low: float  # value at the bottom
    high: float  # value at the top
    labels: tuple[str, str]  # of bottom and top


def loss_curve_figure(rows: Sequence[LossCurveRow], *, title: str, left: str, right: str) -> Markup:
    """Return one row per attack. The x axis runs from 0 to the passes that the attack used.

    Args:
        rows: The curves, one row per attack.
        title: Title of the figure.
        left: Heading of the left panels, which show the objective.
        right: Heading of the right panels, which show the share of misclassified images.
    """
    heads = (
        tag("text", left, x=_LEFT[0], y=12, class_="axis"),
        tag("text", right, x=_RIGHT[1], y=12, text_anchor="end", class_="axis"),
    )
    return svg(
        title,
        "; ".join(f"{row.label}: {row.text}" for row in rows),
        *heads,
        *(shape for k, row in enumerate(rows) for shape in _row(row, _HEAD + _ROW * k)),
        width=WIDTH,
        height=_HEAD + _ROW * len(rows),
    )


def _row(row: LossCurveRow, top: int) -> Iterator[Markup]:
    last = row.misclassified[-1][0]
    middle = top + _PANEL_HEIGHT / 2 + 4
    label = truncated(row.label, _LABEL_LENGTH)
    yield tag("text", tag("title", row.label), label, x=0, y=middle - 8)
    yield tag("text", count(last, "pass"), x=0, y=middle + 9, class_="axis")
    values = [value for _, value in row.objective]
    if values:
        low = min(values)
        high = max(values)
        labels = (f"{low:.3g}" if high > low else "", f"{high:.3g}")
        yield from _curve(row.objective, _Panel(_LEFT, top, last, low, high, labels))
    else:
        yield tag(
            "text",
            "decision-based: the objective has no values",
            x=_LEFT[0],
            y=middle,
            class_="axis",
        )
    yield from _curve(row.misclassified, _Panel(_RIGHT, top, last, 0.0, 1.0, ("0 %", "100 %")))


def _curve(points: Sequence[Point], panel: _Panel) -> Iterator[Markup]:
    """Yield the grid lines of a panel and its curve; a single point is a circle."""
    left, right = panel.span
    bottom = panel.top + _PANEL_HEIGHT
    for y, label in zip((bottom, panel.top), panel.labels, strict=True):
        yield tag("line", x1=left, x2=right, y1=y, y2=y, class_="grid")
        yield tag("text", label, x=left - 8, y=y + 4, text_anchor="end", class_="axis")
    places = [
        (left + (right - left) * passes / panel.last, bottom - _PANEL_HEIGHT * _share(value, panel))
        for passes, value in points
    ]
    if len(places) == 1:
        yield tag("circle", cx=places[0][0], cy=places[0][1], r=3, class_="primary")
        return
    yield tag("path", d="M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places), class_="line")


def _share(value: float, panel: _Panel) -> float:
    """Return the height of a value in its panel, in [0, 1]; a constant curve runs along the top."""
    return (value - panel.low) / (panel.high - panel.low) if panel.high > panel.low else 1.0
