"""Small curves below each other, two for every attack, as inline SVG."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from saddlepoint.reports.figures import shortened
from saddlepoint.reports.markup import Markup, tag

_WIDTH = 860
_HEAD = 26
_ROW = 68
_HIGH = 42
_LEFT = (230, 520)
_RIGHT = (600, 850)  # where the two curves of a row begin and end
_LABEL = 22  # characters that fit before them

Point = tuple[int, float]  # passes, and what was reached


class Trace(NamedTuple):
    """One attack: its value, on a scale of its own, and the share it fooled, from 0 to 100 %."""

    label: str
    value: Sequence[Point]
    share: Sequence[Point]
    words: str


def traces(rows: Sequence[Trace], *, title: str, left: str, right: str) -> Markup:
    """A row per attack; passes go from none to as many as the attack took."""
    height = _HEAD + _ROW * len(rows)
    heads = (
        tag("text", text, x=span[0], y=12, class_="axis")
        for text, span in ((left, _LEFT), (right, _RIGHT))
    )
    body = (part for k, row in enumerate(rows) for part in _row(row, _HEAD + _ROW * k))
    told = "; ".join(f"{row.label}: {row.words}" for row in rows)
    return tag(
        "svg", tag("title", title), tag("desc", told), *heads, *body,
        viewBox=f"0 0 {_WIDTH} {height}", role="img", xmlns="http://www.w3.org/2000/svg",
    )  # fmt: skip


def _row(row: Trace, top: int) -> Iterator[Markup]:
    last = row.share[-1][0]
    middle = top + _HIGH / 2 + 4
    yield tag("text", tag("title", row.label), shortened(row.label, _LABEL), x=0, y=middle - 8)
    yield tag("text", f"{last:,} passes", x=0, y=middle + 9, class_="axis")
    values = [value for _, value in row.value]
    if values:
        low = min(values)
        high = max(values)
        yield from _panel(row.value, last, low, high, (f"{low:.3g}", f"{high:.3g}"), _LEFT, top)
    else:
        yield tag(
            "text", "asks for decisions, which have no value", x=_LEFT[0], y=middle, class_="axis"
        )
    yield from _panel(row.share, last, 0.0, 1.0, ("0 %", "100 %"), _RIGHT, top)


def _panel(
    points: Sequence[Point],
    last: int,
    low: float,
    high: float,
    names: tuple[str, str],
    span: tuple[int, int],
    top: int,
) -> Iterator[Markup]:
    bottom = top + _HIGH
    room = high - low or 1.0
    names = names if high > low else ("", names[1])
    for y, name in zip((bottom, top), names, strict=True):
        yield tag("line", x1=span[0], x2=span[1], y1=y, y2=y, class_="grid")
        yield tag("text", name, x=span[0] - 8, y=y + 4, text_anchor="end", class_="axis")
    places = [
        (
            span[0] + (span[1] - span[0]) * at / last,
            bottom - _HIGH * ((y - low) / room if high > low else 1.0),
        )
        for at, y in points
    ]
    if len(places) == 1:
        yield tag("circle", cx=places[0][0], cy=places[0][1], r=3, class_="kept")
        return
    yield tag("path", d="M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places), class_="line")
