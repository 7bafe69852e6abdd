"""Amounts of two kinds beside each other, as inline SVG."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from saddlepoint.reports.figures import shortened
from saddlepoint.reports.markup import Markup, tag

_WIDTH = 860
_LEFT = 190
_RIGHT = 110
_ROW = 30


class Amount(NamedTuple):
    """One row: two amounts that add up, and the sum in words."""

    label: str
    first: float
    second: float
    words: str


def amounts(rows: Sequence[Amount], *, title: str) -> Markup:
    """Horizontal bars on a common scale that ends at the largest sum."""
    most = max((row.first + row.second for row in rows), default=0.0) or 1.0
    room = (_WIDTH - _LEFT - _RIGHT) / most
    told = "; ".join(f"{row.label}: {row.words}" for row in rows)
    body = (part for k, row in enumerate(rows) for part in _row(row, _ROW * k, room))
    box = f"0 0 {_WIDTH} {max(_ROW * len(rows), 1)}"
    return tag(
        "svg",
        tag("title", title),
        tag("desc", told),
        *body,
        viewBox=box,
        role="img",
        xmlns="http://www.w3.org/2000/svg",
    )


def _row(row: Amount, top: int, room: float) -> Iterator[Markup]:
    middle = top + _ROW / 2
    y = top + 6
    thick = _ROW - 12
    yield tag(
        "text",
        tag("title", row.label),
        shortened(row.label),
        x=_LEFT - 12,
        y=middle + 4.5,
        text_anchor="end",
    )
    yield tag("rect", x=_LEFT, y=y, width=row.first * room, height=thick, class_="kept")
    yield tag(
        "rect",
        x=_LEFT + row.first * room,
        y=y,
        width=row.second * room,
        height=thick,
        class_="lost",
    )
    yield tag("text", row.words, x=_LEFT + (row.first + row.second) * room + 12, y=middle + 4.5)
