"""A payoff matrix as inline SVG, with both players' mixes on its margins."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from saddlepoint.reports.figures import shortened
from saddlepoint.reports.markup import Markup, tag

_WIDTH = 860
_LABELS = 150
_MARGIN = 64
_GAP = 8  # of the figure, of names, of the bars of a mix, between parts
_WRITTEN = 16  # rows and columns up to which values are written into the cells
_NAMED = 40  # rows or columns up to which each has its name beside it
_TALLEST = 30  # of a cell
FAINT = 0.05
STRONG = 0.5  # opacity of the least and the largest value; with more, text on it falls below a contrast of 4.5


@dataclass(frozen=True)
class Matrix:
    """Shares [A][D], the names of both players' actions, their mixes, and which cells are marked."""

    shares: Sequence[Sequence[float]]
    rows: Sequence[str]
    columns: Sequence[str]
    attacker: Sequence[float]  # [A]
    defender: Sequence[float]  # [D]
    marked: frozenset[tuple[int, int]]


def heatmap(matrix: Matrix, *, title: str) -> Markup:
    """The darker, the larger. Columns' mix above, rows' mix to the right; up to 16 x 16 with numbers, else with tooltips."""
    grid = _Grid.of(matrix)
    low = min(map(min, matrix.shares))
    high = max(map(max, matrix.shares))
    told = f"{len(matrix.rows)} rows by {len(matrix.columns)} columns, from {100 * low:.1f} % to {100 * high:.1f} %."
    return tag(
        "svg", tag("title", title), tag("desc", told),
        *_names(matrix, grid), *_mixes(matrix, grid), *_cells(matrix, grid),
        viewBox=f"0 0 {_WIDTH} {grid.bottom + 4:.1f}", role="img", xmlns="http://www.w3.org/2000/svg", class_="matrix",
    )  # fmt: skip


@dataclass(frozen=True)
class _Grid:
    """Where cells are."""

    left: float
    top: float
    wide: float
    high: float
    right: float
    bottom: float

    @classmethod
    def of(cls, matrix: Matrix) -> _Grid:
        left = _LABELS
        right = _WIDTH - _MARGIN - _GAP
        wide = (right - left) / len(matrix.columns)
        high = min(wide, _TALLEST)
        named = _MARGIN if len(matrix.columns) <= _NAMED else 0
        top = named + _MARGIN + _GAP
        return cls(left, top, wide, high, right, top + high * len(matrix.rows))

    def x(self, column: int) -> float:
        return self.left + column * self.wide

    def y(self, row: int) -> float:
        return self.top + row * self.high


def _names(matrix: Matrix, grid: _Grid) -> Iterator[Markup]:
    if len(matrix.rows) <= _NAMED:
        for a, name in enumerate(matrix.rows):
            y = grid.y(a) + grid.high / 2 + 4
            yield tag(
                "text",
                tag("title", name),
                shortened(name, 22),
                x=grid.left - _GAP,
                y=y,
                text_anchor="end",
                class_="axis",
            )
    if len(matrix.columns) <= _NAMED:
        for d, name in enumerate(matrix.columns):
            x = grid.x(d) + grid.wide / 2 + 4
            y = _MARGIN - 4
            turned = f"rotate(-90 {x:.1f} {y})"
            yield tag(
                "text",
                tag("title", name),
                shortened(name, 9),
                x=x,
                y=y,
                transform=turned,
                class_="axis",
            )


def _mixes(matrix: Matrix, grid: _Grid) -> Iterator[Markup]:
    """Bars as long as the probability, on one scale for both players; none where it is nothing but rounding."""
    base = grid.top - _GAP
    most = max(*matrix.attacker, *matrix.defender)
    for d, p in enumerate(matrix.defender):
        if p > 1e-9:
            long = (_MARGIN - 14) * p / most
            title = tag("title", f"the defender answers with {matrix.columns[d]}: {100 * p:.1f} %")
            yield tag(
                "rect",
                title,
                x=grid.x(d) + 0.5,
                y=base - long,
                width=max(grid.wide - 1, 0.5),
                height=long,
                class_="kept",
            )
            if grid.wide >= 20:
                x = grid.x(d) + grid.wide / 2
                yield tag(
                    "text",
                    f"{100 * p:.0f} %",
                    x=x,
                    y=base - long - 4,
                    text_anchor="middle",
                    class_="axis",
                )
    for a, p in enumerate(matrix.attacker):
        if p > 1e-9:
            long = (_MARGIN - 42) * p / most
            title = tag("title", f"the attacker plays {matrix.rows[a]}: {100 * p:.1f} %")
            x = grid.right + _GAP
            y = grid.y(a)
            yield tag(
                "rect",
                title,
                x=x,
                y=y + 0.5,
                width=long,
                height=max(grid.high - 1, 0.5),
                class_="lost",
            )
            if grid.high >= 12:
                yield tag(
                    "text",
                    f"{100 * p:.0f} %",
                    x=x + long + 3,
                    y=y + grid.high / 2 + 4,
                    class_="axis",
                )


def _cells(matrix: Matrix, grid: _Grid) -> Iterator[Markup]:
    """Shaded by rank: one hopeless column would else make all others look alike."""
    written = len(matrix.rows) <= _WRITTEN and len(matrix.columns) <= _WRITTEN
    ranks = {
        share: k
        for k, share in enumerate(sorted({share for shares in matrix.shares for share in shares}))
    }
    for a, shares in enumerate(matrix.shares):
        for d, share in enumerate(shares):
            x = grid.x(d)
            y = grid.y(a)
            strength = FAINT + (STRONG - FAINT) * (
                ranks[share] / (len(ranks) - 1) if len(ranks) > 1 else 1.0
            )
            matched = (a, d) in matrix.marked
            note = ", matched" if matched else ""
            title = tag(
                "title", f"{matrix.rows[a]} against {matrix.columns[d]}: {100 * share:.1f} %{note}"
            )
            inset = 1.0 if grid.wide >= 8 else 0.0
            place = {
                "x": x + inset / 2,
                "y": y + inset / 2,
                "width": grid.wide - inset,
                "height": grid.high - inset,
            }
            yield tag(
                "rect",
                title,
                **place,
                fill_opacity=round(strength, 3),
                class_="matched" if matched else "cell",
            )
            if written:
                across = x + grid.wide / 2
                down = y + grid.high / 2 + 4
                yield tag(
                    "text",
                    f"{100 * share:.1f}",
                    x=across,
                    y=down,
                    text_anchor="middle",
                    class_="value",
                )
