"""Bar charts and histograms as inline SVG.

The figures are a few rectangles and labels: they need no plotting library, print sharply and use
the colors of the page.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from saddlepoint import phrases
from saddlepoint.reports.markup import Markup, join, svg, tag

WIDTH = 860  # units of the coordinate system, for all figures
LABEL_WIDTH = 190  # left of the bars
TEXT_WIDTH = 110  # right of the bars
ROW_HEIGHT = 30
_AXIS = 24
_NARROW = 400  # width of the figure for small screens, where labels are above their bars
_NARROW_ROW = 46
_LABEL_LENGTH = 24  # characters that fit beside the bars
_BASELINE = 150  # y coordinate of the bottom of a histogram
_TALLEST = 130  # height of the tallest bin of a histogram


@dataclass(frozen=True)
class Bar:
    """One row of a bar chart of accuracies. All accuracies are in [0, 1]."""

    label: str
    value: float  # the filled part
    drop: float  # the part after it in the secondary color: accuracy that was lost
    text: str  # shown at the right end of the row
    marker: float | None = None  # position of a tick; None: no tick
    interval: tuple[float, float] | None = None  # ends of a whisker; None: no whisker


@dataclass(frozen=True)
class Layout:
    """Where the parts of a bar chart are, in units of its coordinate system."""

    class_: str  # of the figure; the page shows one of the two layouts
    width: int
    left: int  # of the bars
    right: int  # distance of the bars from the right edge
    row: int  # height of a row
    above: int  # height of the label above a bar; 0: the label is left of it

    def x(self, share: float) -> float:
        """Return the place of an accuracy in [0, 1]."""
        return self.left + share * (self.width - self.left - self.right)


WIDE_LAYOUT = Layout("wide-screen", WIDTH, LABEL_WIDTH, TEXT_WIDTH, ROW_HEIGHT, 0)
NARROW_LAYOUT = Layout("small-screen", _NARROW, 16, 24, _NARROW_ROW, 18)


def bars(rows: Sequence[Bar], *, title: str) -> Markup:
    """Return horizontal bars on a common scale from 0 to 100 %.

    There are two drawings, of which the page shows one: for small screens, labels are above bars.
    """
    return join(
        _chart(rows, title, WIDE_LAYOUT),
        _chart(rows, title, NARROW_LAYOUT),
    )


def _chart(rows: Sequence[Bar], title: str, layout: Layout) -> Markup:
    height = _AXIS + layout.row * len(rows)
    description = "; ".join(f"{row.label}: {row.text}" for row in rows)
    shapes = (
        shape for k, row in enumerate(rows) for shape in _bar(row, _AXIS + layout.row * k, layout)
    )
    return svg(
        title,
        description,
        *_scale(height, layout),
        *shapes,
        width=layout.width,
        height=height,
        class_=layout.class_,
    )


def row_label(label: str, middle: float) -> Markup:
    """Return the label left of a row of bars, truncated; the full text is its tooltip."""
    return tag(
        "text",
        tag("title", label),
        truncated(label),
        x=LABEL_WIDTH - 12,
        y=middle + 4.5,
        text_anchor="end",
    )


def truncated(text: str, length: int = _LABEL_LENGTH) -> str:
    """Return the text, cut to `length` characters with an ellipsis if it is longer."""
    return text if len(text) <= length else text[: length - 1] + "…"


def _scale(height: int, layout: Layout) -> Iterator[Markup]:
    for percent in (0, 25, 50, 75, 100):
        x = layout.x(percent / 100)
        yield tag("line", x1=x, x2=x, y1=_AXIS - 4, y2=height, class_="grid")
        yield tag("text", f"{percent} %", x=x, y=12, text_anchor="middle", class_="axis")


def _bar(row: Bar, top: int, layout: Layout) -> Iterator[Markup]:
    start = top + layout.above
    height = layout.row - layout.above
    middle = start + height / 2
    yield label_of_row(row.label, top, middle, layout)
    yield _text_of_bar(row, top, middle, layout)
    yield from _filled(row, start + 6, height - 12, layout)
    if row.marker is not None:
        x = layout.x(row.marker)
        yield tag("line", x1=x, x2=x, y1=start + 3, y2=start + height - 3, class_="marker")
    if row.interval:
        yield _whisker(row.interval, middle, layout)


def label_of_row(label: str, top: float, middle: float, layout: Layout) -> Markup:
    """Return the label of a row of bars: left of it, or above it."""
    if not layout.above:
        return row_label(label, middle)
    y = top + layout.above - 1
    return tag("text", tag("title", label), truncated(label, 36), x=layout.left, y=y)


def _text_of_bar(row: Bar, top: int, middle: float, layout: Layout) -> Markup:
    if not layout.above:
        return tag("text", row.text, x=layout.width - layout.right + 12, y=middle + 4.5)
    return tag("text", row.text, x=layout.x(1), y=top + layout.above - 1, text_anchor="end")


def _filled(row: Bar, y: int, height: int, layout: Layout) -> Iterator[Markup]:
    """Yield the empty track, the lost part and the filled part of a bar."""
    left = layout.left
    yield tag("rect", x=left, y=y, width=layout.x(1) - left, height=height, rx=3, class_="track")
    if row.drop > 0:
        yield tag(
            "rect",
            x=layout.x(row.value),
            y=y,
            width=layout.x(row.drop) - left,
            height=height,
            class_="secondary",
        )
    yield tag(
        "rect",
        x=left,
        y=y,
        width=layout.x(row.value) - left,
        height=height,
        rx=3 if row.drop <= 0 else 0,
        class_="primary",
    )


def _whisker(interval: tuple[float, float], middle: float, layout: Layout) -> Markup:
    low, high = (layout.x(end) for end in interval)
    left_end = f"M{low:.1f} {middle - 5}v10"
    line = f"M{low:.1f} {middle}H{high:.1f}"
    right_end = f"M{high:.1f} {middle - 5}v10"
    return tag("path", d=f"{left_end}{line}{right_end}", class_="whisker")


def histogram(
    values: Sequence[float], *, title: str, below: str, above: str, bins: int = 60
) -> Markup:
    """Return a histogram with zero in the middle, in one color below zero and another above.

    Args:
        values: The values to count. The scale ends at the 98th percentile of their absolute
            values; values beyond it are counted in the outermost bins.
        title: Title of the figure.
        below: Meaning of negative values.
        above: Meaning of positive values.
        bins: Number of bins.
    """
    magnitudes = sorted(abs(value) for value in values)
    reach = magnitudes[int(0.98 * (len(magnitudes) - 1))] or 1.0
    counts = Counter(min(max(int((value / reach + 1) * bins / 2), 0), bins - 1) for value in values)
    negative = sum(value < 0 for value in values)
    return svg(
        title,
        f"{below}: {phrases.count(negative, 'image')}; {above}: {len(values) - negative}",
        *_bins(counts, bins),
        tag("line", x1=0, x2=WIDTH, y1=_BASELINE, y2=_BASELINE, class_="grid"),
        tag("line", x1=WIDTH / 2, x2=WIDTH / 2, y1=4, y2=_BASELINE + 6, class_="marker"),
        *_histogram_labels(reach, below, above),
        width=WIDTH,
        height=_BASELINE + 30,
    )


def _bins(counts: Counter[int], bins: int) -> Iterator[Markup]:
    width = WIDTH / bins
    highest = max(counts.values())
    for k, count in sorted(counts.items()):
        height = _TALLEST * count / highest
        yield tag(
            "rect",
            x=k * width + 0.5,
            y=_BASELINE - height,
            width=width - 1,
            height=height,
            class_="primary" if k < bins / 2 else "secondary",
        )


def _histogram_labels(reach: float, below: str, above: str) -> Iterator[Markup]:
    labels = (
        (0, _BASELINE + 22, f"{-reach:.3g}", "start"),
        (WIDTH / 2, _BASELINE + 22, "0", "middle"),
        (WIDTH, _BASELINE + 22, f"{reach:.3g}", "end"),
        (WIDTH / 2 - 14, 14, f"← {below}", "end"),
        (WIDTH / 2 + 14, 14, f"{above} →", "start"),
    )
    for x, y, text, anchor in labels:
        yield tag("text", text, x=x, y=y, text_anchor=anchor, class_="axis")
