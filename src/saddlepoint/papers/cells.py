"""Table cells made of per-example results, and sentences about differences."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from torch import Tensor

from saddlepoint.audits.statistics import wilson
from saddlepoint.evaluation import Episode
from saddlepoint.evaluation.bootstrap import Estimate, mean_of
from saddlepoint.papers.result import Cell


def correct_rate(episode: Episode) -> Tensor:
    """Return how often each example [N] was classified correctly, as float64 on the CPU.

    Only the first answer of the defense is used. The entries are 0 or 1 for a deterministic
    defense, and means over the draws for a randomized defense.
    """
    return episode.correct[0].double().cpu()


def accuracy_cell(correct: Tensor, paper: float | None = None) -> Cell:
    """Make a cell of an accuracy in percent with Wilson's interval over images.

    Args:
        correct: [N] how often each example was classified correctly, in [0, 1].
        paper: the paper's number in percent.
    """
    return repeated_accuracy_cell([correct], paper)


def repeated_accuracy_cell(repeats: Sequence[Tensor], paper: float | None = None) -> Cell:
    """Make a cell with one accuracy in percent per repeat, and Wilson's interval of their mean.

    Args:
        repeats: one tensor [N] per repeat: how often each example was classified correctly. All
            repeats use the same examples, so N is the sample size of the interval.
        paper: the paper's number in percent.
    """
    shares = [float(correct.mean()) for correct in repeats]
    interval = wilson(statistics.fmean(shares), len(repeats[0]))
    return Cell(
        tuple(100 * share for share in shares), paper, (100 * interval.low, 100 * interval.high)
    )


def estimate_cell(estimate: Estimate, paper: float | None = None) -> Cell:
    """Make a cell in percent of an estimate with its interval."""
    return Cell((100 * estimate.value,), paper, (100 * estimate.low, 100 * estimate.high))


def difference_cell(first: Tensor, second: Tensor, paper: float | None = None) -> Cell:
    """Make a cell of the difference of two accuracies on the same images, with its interval.

    Args:
        first: [N] how often each example was classified correctly.
        second: [N] the accuracy to subtract, on the same images.
        paper: the paper's difference in percentage points.
    """
    return estimate_cell(mean_of(first - second), paper)


def difference_text(difference: Estimate) -> str:
    """Format a difference of accuracies, for example `+3.0 points (-1.0 to +7.0)`."""
    value, low, high = (100 * number for number in difference[:3])
    return f"{value:+.1f} points ({low:+.1f} to {high:+.1f})"


def by_interval(low: float, high: float, *, above: str, below: str, inconclusive: str) -> str:
    """Choose a text by whether an interval is above zero, below zero, or contains zero."""
    if low > 0:
        return above
    if high < 0:
        return below
    return inconclusive
