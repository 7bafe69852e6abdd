"""Confidence intervals, what they cover, and paired comparisons."""

from __future__ import annotations

from typing import NamedTuple

import torch
from scipy.stats import beta, binomtest, norm
from torch import Tensor

from saddlepoint import phrases
from saddlepoint.defenses import Unit
from saddlepoint.evaluation.bootstrap import bootstrap
from saddlepoint.phrases import noun_for, percent_range

_SAMPLING = "which images were drawn"


class Interval(NamedTuple):
    """A confidence interval of an accuracy. It never covers the strength of attacks."""

    low: float
    high: float
    level: float  # confidence level, such as 0.95
    covers: str = _SAMPLING  # what the interval covers

    def __str__(self) -> str:
        return percent_range(self.low, self.high)


class Paired(NamedTuple):
    """A paired comparison of two classifiers on the same images."""

    only_first: int  # images that only the first classifies correctly
    only_second: int  # images that only the second classifies correctly
    p: float  # of a difference at least as large in either direction, if both are equally good

    @property
    def second_better(self) -> bool:
        """The second is better at the level of 5 %."""
        return self.only_second > self.only_first and self.p < 0.05


def wilson(share: float, n: int, level: float = 0.95) -> Interval:
    """Wilson's score interval: all p with |share - p| <= z sqrt(p (1 - p) / n) (Wilson 1927).

    Args:
        share: an accuracy in [0, 1]. It may be a mean of numbers in [0, 1], as for a randomized
            defense that is evaluated over several draws. Such numbers vary at most as much as
            Bernoulli variables of the same mean, so the interval is then too wide.
        n: number of images.
        level: confidence level; default: 0.95.

    Raises:
        ValueError: `share` is not in [0, 1], or there is no image.
    """
    if not (0 <= share <= 1 and n >= 1):
        raise ValueError(
            "an interval needs a fraction in [0, 1] of at least one example, "
            f"got share={share}, n={n}."
        )
    z = float(norm.ppf((1 + level) / 2))
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * (share * (1 - share) / n + z * z / (4 * n * n)) ** 0.5
    return Interval(max(0.0, middle - half), min(1.0, middle + half), level)


def over_units(correct: Tensor, group: Tensor, unit: Unit, level: float = 0.95) -> Interval:
    """The interval of mean(correct), where images of one batch or stream are not independent.

    Independent images have Wilson's interval. Otherwise whole units are resampled (bootstrap). The
    interval is never narrower than Wilson's: a few units that agree by chance prove nothing. A
    single unit cannot be resampled.

    Args:
        correct: correctness per image, [N], in [0, 1].
        group: the unit of each image, [N], counted from 0.
        unit: "example", "batch" or "stream".
        level: confidence level; default: 0.95.
    """
    independent = wilson(float(correct.double().mean()), len(correct), level)
    if unit == "example":
        return independent
    members = [correct.double()[group == number] for number in range(int(group.amax()) + 1)]
    if len(members) == 1:
        covers = (
            f"{_SAMPLING}, as if images were independent; all of them belong to one {unit}, so it "
            "is too narrow"
        )
        return independent._replace(covers=covers)
    total = torch.stack([m.sum() for m in members])
    count = torch.tensor([len(m) for m in members], dtype=torch.float64)
    resampled = bootstrap(
        lambda rows: float(total[rows].sum() / count[rows].sum()), len(members), level=level
    )
    units = noun_for(2, unit)
    return Interval(
        min(resampled.low, independent.low),
        max(resampled.high, independent.high),
        level,
        f"which {phrases.count(len(members), unit)} of images were drawn (bootstrap over whole "
        f"{units})",
    )


def clopper_pearson(successes: int, n: int, level: float = 0.95) -> Interval:
    """The exact interval of a binomial fraction (Clopper & Pearson 1934).

    P(at least `successes` | low) = P(at most `successes` | high) = (1 - level) / 2. Its coverage is
    never below the level.

    Raises:
        ValueError: the counts are inconsistent.
    """
    if not 0 <= successes <= n or n < 1:
        raise ValueError(
            f"an interval needs 0 <= successes <= n with n >= 1, got {successes} of {n}."
        )
    tail = (1 - level) / 2
    low = float(beta.ppf(tail, successes, n - successes + 1)) if successes else 0.0
    high = float(beta.ppf(1 - tail, successes + 1, n - successes)) if successes < n else 1.0
    return Interval(low, high, level)


def mcnemar(first: Tensor, second: Tensor) -> Paired:
    """The exact test of McNemar (1947).

    Of b + c images that only one of two classifiers gets right, c ~ Bin(b + c, 1/2) if both are
    equally good.

    Args:
        first: correctness of the first, [N]; a fraction of draws counts from one half on.
        second: correctness of the second, [N].

    Raises:
        ValueError: the shapes differ.
    """
    if first.shape != second.shape or first.ndim != 1:
        raise ValueError(
            "a paired comparison needs the same images twice, "
            f"got shapes {list(first.shape)} and {list(second.shape)}."
        )
    a = first >= 0.5
    b = second >= 0.5
    only_first = int((a & ~b).sum())
    only_second = int((b & ~a).sum())
    either = only_first + only_second
    p = float(binomtest(only_second, either, 0.5).pvalue) if either else 1.0
    return Paired(only_first, only_second, p)
