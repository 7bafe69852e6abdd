"""Stacked bars of two amounts, such as forward and backward passes, as inline SVG."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from saddlepoint.reports.figures import LABEL_WIDTH, ROW_HEIGHT, TEXT_WIDTH, WIDTH, row_label
from saddlepoint.reports.markup import Markup, svg, tag


class StackedBar(NamedTuple):
    """One row: two amounts that add up."""

    label: str
    first: float  # drawn in the primary color
    second: float  # drawn after it in the secondary color
    text: str  # shown after the bar


def stacked_bars(rows: Sequence[StackedBar], *, title: str) -> Markup:
    """Return horizontal bars on a common scale that ends at the largest sum."""
    largest = max((row.first + row.second for row in rows), default=0.0) or 1.0
    scale = (WIDTH - LABEL_WIDTH - TEXT_WIDTH) / largest
    return svg(
        title,
        "; ".join(f"{row.label}: {row.text}" for row in rows),
        *(shape for k, row in enumerate(rows) for shape in _row(row, ROW_HEIGHT * k, scale)),
        width=WIDTH,
        height=max(ROW_HEIGHT * len(rows), 1),
    )


def _row(row: StackedBar, top: int, scale: float) -> Iterator[Markup]:
    middle = top + ROW_HEIGHT / 2
    y = top + 6
    height = ROW_HEIGHT - 12
    first = row.first * scale
    second = row.second * scale
    yield row_label(row.label, middle)
    yield tag("rect", x=LABEL_WIDTH, y=y, width=first, height=height, class_="primary")
    yield tag("rect", x=LABEL_WIDTH + first, y=y, width=second, height=height, class_="secondary")
    yield tag("text", row.text, x=LABEL_WIDTH + first + second + 12, y=middle + 4.5)
