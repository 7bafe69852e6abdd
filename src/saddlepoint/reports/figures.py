"""Figures as inline SVG: a few rectangles and labels need no plotting library, print sharply and follow the page's colors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from saddlepoint.reports.markup import Markup, join, tag

_WIDTH = 860
_LEFT = 190
_RIGHT = 110
_ROW = 30
_AXIS = 24
_LABEL = 26  # characters that fit beside the bars


@dataclass(frozen=True)
class Bar:
    """One row of a figure: what is kept, what was just lost, and words at the end."""

    label: str
    kept: float  # in [0, 1]
    lost: float
    words: str
    alone: float | None = None  # a tick: what this row would keep by itself
    interval: tuple[float, float] | None = None


def bars(rows: Sequence[Bar], *, title: str) -> Markup:
    """Horizontal bars on a common scale from 0 to 100 %."""
    height = _AXIS + _ROW * len(rows)
    described = "; ".join(f"{row.label}: {row.words}" for row in rows)
    body = (part for k, row in enumerate(rows) for part in _bar(row, _AXIS + _ROW * k))
    drawn = join(tag("title", title), tag("desc", described), *_scale(height), *body)
    return tag(
        "svg",
        drawn,
        viewBox=f"0 0 {_WIDTH} {height}",
        role="img",
        xmlns="http://www.w3.org/2000/svg",
    )


def shortened(text: str, length: int = _LABEL) -> str:
    """The beginning of a text that is too long for its place."""
    return text if len(text) <= length else text[: length - 1] + "…"


def _scale(height: int) -> Iterator[Markup]:
    for percent in (0, 25, 50, 75, 100):
        x = _across(percent / 100)
        yield tag("line", x1=x, x2=x, y1=_AXIS - 4, y2=height, class_="grid")
        yield tag("text", f"{percent} %", x=x, y=12, text_anchor="middle", class_="axis")


def _bar(row: Bar, top: int) -> Iterator[Markup]:
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
    yield tag("rect", x=_LEFT, y=y, width=_across(1) - _LEFT, height=thick, rx=3, class_="track")
    if row.lost > 0:
        yield tag(
            "rect",
            x=_across(row.kept),
            y=y,
            width=_across(row.lost) - _LEFT,
            height=thick,
            class_="lost",
        )
    yield tag(
        "rect",
        x=_LEFT,
        y=y,
        width=_across(row.kept) - _LEFT,
        height=thick,
        rx=3 if row.lost <= 0 else 0,
        class_="kept",
    )
    if row.alone is not None:
        x = _across(row.alone)
        yield tag("line", x1=x, x2=x, y1=y - 3, y2=y + thick + 3, class_="alone")
    if row.interval:
        low, high = (_across(end) for end in row.interval)
        yield tag(
            "path",
            d=f"M{low:.1f} {middle - 5}v10M{low:.1f} {middle}H{high:.1f}M{high:.1f} {middle - 5}v10",
            class_="whisker",
        )
    yield tag("text", row.words, x=_WIDTH - _RIGHT + 12, y=middle + 4.5)


def _across(share: float) -> float:
    return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)


def histogram(
    values: Sequence[float], *, title: str, below: str, above: str, bins: int = 60
) -> Markup:
    """Counts on a scale with zero in its middle, in one color below and in another above.

    The scale ends at the 98th percentile of the sizes; what lies beyond is counted in the outermost bins.
    """
    sizes = sorted(abs(value) for value in values)
    reach = sizes[int(0.98 * (len(sizes) - 1))] or 1.0
    counts = Counter(min(max(int((value / reach + 1) * bins / 2), 0), bins - 1) for value in values)
    base = 150
    wide = _WIDTH / bins
    tallest = max(counts.values())
    negative = sum(value < 0 for value in values)
    parts = [
        tag("title", title),
        tag("desc", f"{below}: {negative} images; {above}: {len(values) - negative}"),
    ]
    for k, count in sorted(counts.items()):
        up = 130 * count / tallest
        color = "kept" if k < bins / 2 else "lost"
        parts.append(
            tag("rect", x=k * wide + 0.5, y=base - up, width=wide - 1, height=up, class_=color)
        )
    parts.append(tag("line", x1=0, x2=_WIDTH, y1=base, y2=base, class_="grid"))
    parts.append(tag("line", x1=_WIDTH / 2, x2=_WIDTH / 2, y1=4, y2=base + 6, class_="alone"))
    words = (
        (0, base + 22, f"{-reach:.3g}", "start"),
        (_WIDTH / 2, base + 22, "0", "middle"),
        (_WIDTH, base + 22, f"{reach:.3g}", "end"),
        (_WIDTH / 2 - 14, 14, f"← {below}", "end"),
        (_WIDTH / 2 + 14, 14, f"{above} →", "start"),
    )
    parts += [
        tag("text", text, x=x, y=y, text_anchor=anchor, class_="axis")
        for x, y, text, anchor in words
    ]
    return tag(
        "svg",
        *parts,
        viewBox=f"0 0 {_WIDTH} {base + 30}",
        role="img",
        xmlns="http://www.w3.org/2000/svg",
    )
