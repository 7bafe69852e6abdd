"""Differences of accuracies beside the paper's differences."""

from __future__ import annotations

from collections.abc import Sequence

from saddlepoint.audits.statistics import wilson
from saddlepoint.papers.comparison import Agreement, Comparison, Measured, compare_effect, summary
from saddlepoint.papers.result import Cell


def difference(first: Cell, second: Cell, n: int) -> Measured:
    """`first` minus `second`, two accuracies over n images, with a 95 % interval.

    Newcombe's interval of Wilson's intervals, which treats the images of both as independent. For
    attacks on the same images it is wider than a paired interval. It has a width at 0 and 100 % as
    well, where no image differs: few images do not show that an effect is absent.
    """
    return _with_interval(first, n).minus(_with_interval(second, n))


def _with_interval(cell: Cell, n: int) -> Measured:
    interval = wilson(cell.mean / 100, n)
    return Measured(cell.mean, 100 * interval.low, 100 * interval.high)


def compare_difference(first: Cell, second: Cell, n: int) -> Comparison | None:
    """Compare `first` minus `second` with the paper; None if the paper lacks one of them."""
    if first.paper is None or second.paper is None:
        return None
    return compare_effect(difference(first, second, n), first.paper - second.paper)


def comparison_findings(comparisons: Sequence[tuple[str, Comparison]], about: str) -> list[str]:
    """A sentence with the counts, then one sentence per comparison that is against the paper.

    Args:
        comparisons: names of what is compared, with the outcomes.
        about: the compared number, such as "accuracy with NEED minus accuracy without".
    """
    if not comparisons:
        return []
    counts = f"{about}: {summary([found for _, found in comparisons])}."
    against = [
        f"{name}: {found.text}."
        for name, found in comparisons
        if found.agreement is Agreement.DIFFERS
    ]
    return [counts[0].upper() + counts[1:], *against]
