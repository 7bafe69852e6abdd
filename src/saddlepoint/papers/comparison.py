"""Compares measured numbers with published ones: direction, size, order, and base networks.

Pure functions of numbers. All numbers are percentages or percentage points, as in `result.Cell`.
A comparison has one of three outcomes (`Agreement`). "As in the paper" needs all of it: the
direction, the size and the order. A measured effect that is absent, reversed or of another size is
"against the paper", whatever its cause; the notes of a result give the cause where it is known.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations
from typing import NamedTuple

from saddlepoint.audits.statistics import wilson
from saddlepoint.papers.result import Cell, Table
from saddlepoint.phrases import agree as verb
from saddlepoint.phrases import count_of, names

SIZE_TOLERANCE = 10.0  # points that a reproduction on other networks and images may differ
SAME = 1.0  # points; published numbers that differ by less have no order
BASE_TOLERANCE = 5.0  # points; a base network that differs by more is another base network


class Agreement(StrEnum):
    """Whether a measurement agrees with a published number; the value is the text."""

    AGREES = "as in the paper"
    DIFFERS = "against the paper"
    UNDECIDED = "not decided on these images"


class Measured(NamedTuple):
    """A measured number with its 95 % interval over images."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, cell: Cell) -> Measured:
        """The mean of a cell with its interval; without one, with the range of its repeats."""
        low, high = cell.interval or (min(cell.values), max(cell.values))
        return cls(cell.mean, low, high)

    @classmethod
    def accuracy(cls, table: Table, labels: tuple[str, ...], column: str) -> Measured:
        """An accuracy of a table; without its own interval, with Wilson's over the images."""
        cell = table.cell(labels, column)
        if cell.interval or not table.n:
            return cls.of(cell)
        interval = wilson(cell.mean / 100, table.n)
        return cls(cell.mean, 100 * interval.low, 100 * interval.high)

    def minus(self, other: Measured) -> Measured:
        """The difference, with Newcombe's interval (1998, method 10) of independent samples.

        On the same images it is too wide, because their results are positively correlated.
        """
        value = self.value - other.value
        below = math.hypot(self.value - self.low, other.high - other.value)
        above = math.hypot(self.high - self.value, other.value - other.low)
        return Measured(value, value - below, value + above)


class Comparison(NamedTuple):
    """The outcome of one comparison."""

    agreement: Agreement
    text: str  # a clause that ends with the outcome, without a full stop


class PaperComparison(NamedTuple):
    """What a result page says about a result beside the paper's numbers."""

    findings: tuple[str, ...]  # sentences
    warnings: tuple[str, ...] = ()  # shown above the tables


def compare_level(
    measured: Measured, published: float, *, tolerance: float = SIZE_TOLERANCE
) -> Comparison:
    """Compare an accuracy with the published one.

    Args:
        measured: the accuracy in percent.
        published: the paper's accuracy in percent.
        tolerance: difference in points that counts as equal.

    Returns:
        AGREES if the accuracy is within the tolerance and its interval within twice the tolerance,
        DIFFERS if the whole interval is outside of the tolerance, UNDECIDED otherwise.
    """
    agreement = _size(measured, published, tolerance)
    text = f"{measured.value:.1f} % ({measured.low:.1f} to {measured.high:.1f})"
    distance = _distance(measured.value, published)
    return Comparison(agreement, f"{text}, in the paper {published:.1f} %{distance}: {agreement}")


def compare_effect(
    measured: Measured,
    published: float,
    *,
    tolerance: float = SIZE_TOLERANCE,
    negligible: float = SAME,
) -> Comparison:
    """Compare a difference of two accuracies with the published difference.

    Args:
        measured: the difference in points.
        published: the paper's difference in points.
        tolerance: difference of the two in points that counts as equal.
        negligible: a published difference below this has no direction.

    Returns:
        AGREES if direction and size agree, DIFFERS if one of them is excluded by the interval,
        UNDECIDED otherwise.
    """
    direction = _direction(measured, published, negligible)
    size = _size(measured, published, tolerance)
    agreement = _all_of([direction, size])
    shown = f"{measured.value:+.1f} points ({measured.low:+.1f} to {measured.high:+.1f})"
    text = f"{shown}, in the paper {published:+.1f}: {agreement}"
    if agreement is Agreement.DIFFERS:
        text += f" in {names(_parts(direction, size))}"
    return Comparison(agreement, text)


def ordered_pairs(published: Mapping[str, float], *, same: float = SAME) -> list[tuple[str, str]]:
    """The pairs of names whose published numbers differ enough to have an order, smaller first.

    Args:
        published: the paper's accuracies by name.
        same: numbers that differ by less than this many points have no order.
    """
    return [
        (a, b) if published[a] < published[b] else (b, a)
        for a, b in combinations(published, 2)
        if abs(published[a] - published[b]) >= same
    ]


def compare_order(
    measured: Mapping[str, Measured], published: Mapping[str, float], *, same: float = SAME
) -> Comparison:
    """Compare the order of several accuracies, such as those under several attacks.

    Pairs whose published numbers are almost equal are not counted.

    Args:
        measured: accuracies in percent by name.
        published: the paper's accuracies by name; all of them were measured.
        same: published numbers that differ by less than this many points have no order.

    Returns:
        DIFFERS if the interval of a difference excludes the published order, AGREES if every pair
        is measured in the published order, UNDECIDED otherwise.

    Raises:
        ValueError: no pair of published numbers has an order.
    """
    pairs = ordered_pairs(published, same=same)
    if not pairs:
        raise ValueError(
            f"the published numbers {dict(published)} are all within {same:g} points and have no "
            "order. Compare their levels instead."
        )
    kept = [pair for pair in pairs if measured[pair[0]].value < measured[pair[1]].value]
    reversed_pairs = [(a, b) for a, b in pairs if measured[a].minus(measured[b]).low > 0]
    if reversed_pairs:
        agreement = Agreement.DIFFERS
    else:
        agreement = Agreement.AGREES if len(kept) == len(pairs) else Agreement.UNDECIDED
    text = f"the paper's order holds in {count_of(len(kept), len(pairs), 'pair')}"
    if reversed_pairs:
        text += f" and is reversed for {names(_pair_texts(measured, reversed_pairs), limit=3)}"
    return Comparison(agreement, f"{text}: {agreement}")


def _pair_texts(measured: Mapping[str, Measured], pairs: Iterable[tuple[str, str]]) -> list[str]:
    return [
        f"{a} ({measured[a].value:.1f} %) against {b} ({measured[b].value:.1f} %)" for a, b in pairs
    ]


@dataclass(frozen=True)
class BaseNetwork:
    """A number of a base network next to the paper's: its clean or its static robust accuracy."""

    name: str  # of the network and the number: "mnist madry, clean"
    measured: Measured
    published: float


def distant_bases(bases: Iterable[BaseNetwork], *, tolerance: float = BASE_TOLERANCE) -> list[str]:
    """Warn of base networks that are far from the paper's.

    Args:
        bases: clean and static robust accuracies of base networks.
        tolerance: difference in points above which a base network is marked, if the paper's
            number is also outside of the interval.

    Returns:
        One warning per distant number, for `Result.symptoms`, which are shown above the tables.
    """
    return [
        f"{base.name}: {base.measured.value:.1f} %, in the paper {base.published:.1f} %. This is "
        "another starting point than the paper's, so robust accuracies of this row are not "
        "comparable with the paper's."
        for base in bases
        if abs(base.measured.value - base.published) > tolerance
        and not base.measured.low <= base.published <= base.measured.high
    ]


def base_networks(table: Table, columns: Sequence[str]) -> list[BaseNetwork]:
    """The cells of a table that describe base networks and have a published number.

    Args:
        table: a table of accuracies.
        columns: its columns about base networks, such as "static, clean".
    """
    return [
        BaseNetwork(
            f"{' '.join(row.labels)}, {column}",
            Measured.accuracy(table, row.labels, column),
            cell.paper,
        )
        for row in table.rows
        for column, cell in zip(table.columns, row.cells, strict=True)
        if column in columns and cell is not None and cell.paper is not None
    ]


def summary(comparisons: Iterable[Comparison]) -> str:
    """Count the outcomes: `2 of 3 comparisons agree with the paper, 1 is against it, ...`."""
    outcomes = [comparison.agreement for comparison in comparisons]
    agree, against, undecided = (outcomes.count(one) for one in Agreement)
    return (
        f"{count_of(agree, len(outcomes), 'comparison')} {verb(agree, 'agrees', 'agree')} with the "
        f"paper, {against or 'none'} {verb(against, 'is', 'are')} against it, and "
        f"{undecided or 'none'} {verb(undecided, 'is', 'are')} undecided on these images"
    )


def _size(measured: Measured, published: float, tolerance: float) -> Agreement:
    low = measured.low - published
    high = measured.high - published
    if low > tolerance or high < -tolerance:
        return Agreement.DIFFERS
    close = abs(measured.value - published) <= tolerance
    precise = max(-low, high) <= 2 * tolerance
    return Agreement.AGREES if close and precise else Agreement.UNDECIDED


def _direction(measured: Measured, published: float, negligible: float) -> Agreement:
    if abs(published) < negligible:
        return Agreement.AGREES
    signed = measured if published > 0 else Measured(-measured.value, -measured.high, -measured.low)
    if signed.low > 0:
        return Agreement.AGREES
    if signed.high < negligible:
        return Agreement.DIFFERS
    return Agreement.UNDECIDED


def _all_of(parts: Iterable[Agreement]) -> Agreement:
    found = set(parts)
    for outcome in (Agreement.DIFFERS, Agreement.UNDECIDED):
        if outcome in found:
            return outcome
    return Agreement.AGREES


def _parts(direction: Agreement, size: Agreement) -> list[str]:
    named = {"direction": direction, "size": size}
    return [name for name, outcome in named.items() if outcome is Agreement.DIFFERS]


def _distance(value: float, published: float) -> str:
    if abs(value - published) < SAME:
        return ""
    side = "above" if value > published else "below"
    return f", {abs(value - published):.1f} points {side}"
