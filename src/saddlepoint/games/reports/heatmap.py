"""A payoff matrix as inline SVG, with the mixed strategies of both players on its margins."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from saddlepoint.phrases import count, percent_cell
from saddlepoint.reports.figures import WIDTH, truncated
from saddlepoint.reports.markup import Markup, svg, tag

_LABELS = 150  # width of the row names
_MARGIN = 64  # space for the bars of a strategy, and for column names
_GAP = 8  # between parts
_WITH_NUMBERS = 16  # rows and columns up to which accuracies are written into the cells
_WITH_NAMES = 40  # rows or columns up to which each has its name beside it
_TALLEST = 30  # height of a cell
_ROUNDING = 1e-9  # smaller probabilities are rounding errors
# Opacity of the lowest and of the highest accuracy. With more than 0.5, the contrast of text on
# the cell would be below 4.5 to 1.
FAINT = 0.05
STRONG = 0.5


@dataclass(frozen=True)
class Matrix:
    """A payoff matrix with A rows (attacks) and D columns (sets of exits)."""

    accuracies: Sequence[Sequence[float]]  # [A][D] in [0, 1]
    rows: Sequence[str]  # [A] names
    columns: Sequence[str]  # [D] names
    attacker: Sequence[float]  # [A] mixed strategy of the attacker
    defender: Sequence[float]  # [D] mixed strategy of the defender
    matched: frozenset[tuple[int, int]]  # cells in which the row attacks exactly the column's exits


def heatmap(matrix: Matrix, *, title: str) -> Markup:
    """Return the matrix as a heatmap: the darker a cell, the higher its accuracy.

    The defender's strategy is above the matrix, the attacker's to its right. Matrices up to 16 x 16
    show their numbers; larger ones show them as tooltips.
    """
    grid = _Grid.of(matrix)
    low = min(map(min, matrix.accuracies))
    high = max(map(max, matrix.accuracies))
    return svg(
        title,
        f"{count(len(matrix.rows), 'row')} by {count(len(matrix.columns), 'column')}, from "
        f"{percent_cell(low)} to {percent_cell(high)}.",
        *_row_names(matrix, grid),
        *_column_names(matrix, grid),
        *_strategies(matrix, grid),
        *_cells(matrix, grid),
        width=WIDTH,
        height=grid.bottom + 4,
        class_="matrix",
    )


@dataclass(frozen=True)
class _Grid:
    """The coordinates of the cells."""

    left: float
    top: float
    width: float  # of a cell
    height: float  # of a cell
    right: float
    bottom: float

    @classmethod
    def of(cls, matrix: Matrix) -> _Grid:
        left = _LABELS
        right = WIDTH - _MARGIN - _GAP
        width = (right - left) / len(matrix.columns)
        height = min(width, _TALLEST)
        names = _MARGIN if len(matrix.columns) <= _WITH_NAMES else 0
        top = names + _MARGIN + _GAP
        return cls(left, top, width, height, right, top + height * len(matrix.rows))

    def x(self, column: int) -> float:
        return self.left + column * self.width

    def y(self, row: int) -> float:
        return self.top + row * self.height


def _row_names(matrix: Matrix, grid: _Grid) -> Iterator[Markup]:
    if len(matrix.rows) > _WITH_NAMES:
        return
    for a, name in enumerate(matrix.rows):
        yield tag(
            "text",
            tag("title", name),
            truncated(name, 22),
            x=grid.left - _GAP,
            y=grid.y(a) + grid.height / 2 + 4,
            text_anchor="end",
            class_="axis",
        )


def _column_names(matrix: Matrix, grid: _Grid) -> Iterator[Markup]:
    if len(matrix.columns) > _WITH_NAMES:
        return
    for d, name in enumerate(matrix.columns):
        x = grid.x(d) + grid.width / 2 + 4
        y = _MARGIN - 4
        yield tag(
            "text",
            tag("title", name),
            truncated(name, 9),
            x=x,
            y=y,
            transform=f"rotate(-90 {x:.1f} {y})",
            class_="axis",
        )


def _strategies(matrix: Matrix, grid: _Grid) -> Iterator[Markup]:
    """Yield bars as long as the probabilities, on one scale for both players."""
    largest = max(*matrix.attacker, *matrix.defender)
    for d, p in enumerate(matrix.defender):
        if p > _ROUNDING:
            name = matrix.columns[d]
            yield from _column_bar(grid, d, p, (_MARGIN - 14) * p / largest, name)
    for a, p in enumerate(matrix.attacker):
        if p > _ROUNDING:
            yield from _row_bar(grid, a, p, (_MARGIN - 42) * p / largest, matrix.rows[a])


def _column_bar(grid: _Grid, d: int, p: float, length: float, name: str) -> Iterator[Markup]:
    """Yield the defender's probability of column `d`, above the matrix."""
    base = grid.top - _GAP
    yield tag(
        "rect",
        tag("title", f"the defender plays {name}: {percent_cell(p)}"),
        x=grid.x(d) + 0.5,
        y=base - length,
        width=max(grid.width - 1, 0.5),
        height=length,
        class_="primary",
    )
    if grid.width >= 20:
        yield tag(
            "text",
            percent_cell(p, 0),
            x=grid.x(d) + grid.width / 2,
            y=base - length - 4,
            text_anchor="middle",
            class_="axis",
        )


def _row_bar(grid: _Grid, a: int, p: float, length: float, name: str) -> Iterator[Markup]:
    """Yield the attacker's probability of row `a`, right of the matrix."""
    x = grid.right + _GAP
    yield tag(
        "rect",
        tag("title", f"the attacker plays {name}: {percent_cell(p)}"),
        x=x,
        y=grid.y(a) + 0.5,
        width=length,
        height=max(grid.height - 1, 0.5),
        class_="secondary",
    )
    if grid.height >= 12:
        y = grid.y(a) + grid.height / 2 + 4
        yield tag("text", percent_cell(p, 0), x=x + length + 3, y=y, class_="axis")


def _cells(matrix: Matrix, grid: _Grid) -> Iterator[Markup]:
    numbers = len(matrix.rows) <= _WITH_NUMBERS and len(matrix.columns) <= _WITH_NUMBERS
    opacity = _opacities(matrix)
    for a, accuracies in enumerate(matrix.accuracies):
        for d, accuracy in enumerate(accuracies):
            yield _cell(matrix, grid, (a, d), opacity[accuracy])
            if numbers:
                yield tag(
                    "text",
                    f"{100 * accuracy:.1f}",
                    x=grid.x(d) + grid.width / 2,
                    y=grid.y(a) + grid.height / 2 + 4,
                    text_anchor="middle",
                    class_="value",
                )


def _opacities(matrix: Matrix) -> dict[float, float]:
    """Return the opacity of each accuracy by its rank.

    By value, a single very low column would make all others look alike.
    """
    ordered = sorted({accuracy for accuracies in matrix.accuracies for accuracy in accuracies})
    last = len(ordered) - 1
    return {
        accuracy: FAINT + (STRONG - FAINT) * (k / last if last else 1.0)
        for k, accuracy in enumerate(ordered)
    }


def _cell(matrix: Matrix, grid: _Grid, place: tuple[int, int], opacity: float) -> Markup:
    a, d = place
    matched = place in matrix.matched
    text = (
        f"{matrix.rows[a]} against {matrix.columns[d]}: {percent_cell(matrix.accuracies[a][d])}"
        f"{', matched' if matched else ''}"
    )
    inset = 1.0 if grid.width >= 8 else 0.0
    return tag(
        "rect",
        tag("title", text),
        x=grid.x(d) + inset / 2,
        y=grid.y(a) + inset / 2,
        width=grid.width - inset,
        height=grid.height - inset,
        fill_opacity=round(opacity, 3),
        class_="matched" if matched else "cell",
    )
