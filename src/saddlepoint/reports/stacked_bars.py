"""Stacked bars of two amounts, such as forward and backward passes, as inline SVG."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from saddlepoint.reports.figures import NARROW_LAYOUT, WIDE_LAYOUT, Layout, label_of_row
from saddlepoint.reports.markup import Markup, join, svg, tag


class StackedBar(NamedTuple):
    """One row: two amounts that add up."""

    label: str
    first: float  # drawn in the primary color
    second: float  # drawn after it in the secondary color
    text: str  # shown after the bar


def stacked_bars(rows: Sequence[StackedBar], *, title: str) -> Markup:
    """Return horizontal bars on a common scale that ends at the largest sum.

    There are two drawings, of which the page shows one: for small screens, labels are above bars.
    """
    return join(*(_chart(rows, title, layout) for layout in (WIDE_LAYOUT, NARROW_LAYOUT)))


def _chart(rows: Sequence[StackedBar], title: str, layout: Layout) -> Markup:
    largest = max((row.first + row.second for row in rows), default=0.0) or 1.0
    scale = (layout.x(1) - layout.left) / largest
    return svg(
        title,
        "; ".join(f"{row.label}: {row.text}" for row in rows),
        *(shape for k, row in enumerate(rows) for shape in _row(row, k, scale, layout)),
        width=layout.width,
        height=max(layout.row * len(rows), 1),
        class_=layout.class_,
    )


def _row(row: StackedBar, number: int, scale: float, layout: Layout) -> Iterator[Markup]:
    top = layout.row * number
    start = top + layout.above
    height = layout.row - layout.above
    middle = start + height / 2
    first = row.first * scale
    second = row.second * scale
    y = start + 6
    thick = height - 12
    yield label_of_row(row.label, top, middle, layout)
    yield tag("rect", x=layout.left, y=y, width=first, height=thick, class_="primary")
    yield tag("rect", x=layout.left + first, y=y, width=second, height=thick, class_="secondary")
    if layout.above:
        yield tag("text", row.text, x=layout.x(1), y=start - 1, text_anchor="end")
    else:
        yield tag("text", row.text, x=layout.left + first + second + 12, y=middle + 4.5)
