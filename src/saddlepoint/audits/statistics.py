"""Confidence intervals, what they cover, and paired comparisons."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr, betaincinv, fdtri, ndtri, stdtrit
from torch import Tensor

from saddlepoint import phrases
from saddlepoint.defenses import Unit
from saddlepoint.phrases import percent_range

Floats = NDArray[np.float64]

# Images. Rounding errors of sums over a million images are smaller, and one draw of an image is
# far larger.
TOLERANCE = 1e-6
_SAMPLING = "which images were drawn"
_LARGEST_CORRELATION = 0.2  # within batches, where the data do not exclude it
_EXCLUDED = 0.01  # probability of excluding the true correlation
_CONSTANT = 1e-9  # a sum of squares: all images of each batch have the same correctness


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
    low, high = wilson_bounds(np.asarray(float(share)), np.asarray(float(n)), level)
    return Interval(float(low), float(high), level)


def wilson_bounds(share: Floats, n: Floats, level: float = 0.95) -> tuple[Floats, Floats]:
    """The bounds of `wilson` for many accuracies at once.

    Without rounding errors low <= share <= high, low = 0 for share 0, and high = 1 for share 1. The
    bounds are clipped so that this holds with rounding errors as well.

    Args:
        share: accuracies in [0, 1].
        n: numbers of images; a design effect makes them fractional.
        level: confidence level; default: 0.95.
    """
    z = float(ndtri((1 + level) / 2))
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * (share * (1 - share) / n + z * z / (4 * n * n)) ** 0.5
    low = np.clip(middle - half, 0.0, share)
    high = np.clip(middle + half, share, 1.0)
    return low, high


def fewer_images(share: float, other: float, n: int) -> bool:
    """Whether an accuracy on n images is below another one, by more than rounding errors.

    Accuracies are compared as numbers of images, which are whole for a deterministic defense and
    multiples of 1 / draws for a randomized one.
    """
    return not at_least_images(share, other, n, 0)


def at_least_images(share: float, other: float, n: int, count: float) -> bool:
    """Whether `share` of n images are at least `count` images more than `other`, up to rounding."""
    return n * (share - other) >= count - TOLERANCE


def significantly_lower(fewer: Tensor, more: Tensor) -> bool:
    """Lower by at least two images and one percent: one image, or one draw, may be chance.

    Args:
        fewer: correctness per image, [N], in [0, 1].
        more: correctness of the same images, [N].
    """
    broken = float((more.double() - fewer.double()).sum())
    return broken >= max(2, 0.01 * len(more)) - TOLERANCE


def over_units(correct: Tensor, group: Tensor, unit: Unit, level: float = 0.95) -> Interval:
    """The interval of mean(correct), where images of one batch or stream are not independent.

    Independent images have Wilson's interval, dependent ones that of `batch_bounds`. A single unit
    does not show how much units vary.

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
    total = np.array([float(m.sum()) for m in members])
    squares = np.array([float((m * m).sum()) for m in members])
    count = np.array([float(len(m)) for m in members])
    low, high = batch_bounds(total, squares, count, level)
    return Interval(
        float(low),
        float(high),
        level,
        f"which {phrases.count(len(members), unit)} of images were drawn; images of one {unit} "
        "may be correlated",
    )


def batch_bounds(
    total: Floats, squares: Floats, count: Floats, level: float = 0.95
) -> tuple[Floats, Floats]:
    """Bounds of an accuracy over k >= 2 batches with correlated images: a union of two intervals.

    The first is the t interval of the ratio p = sum_i total_i / n with n = sum_i count_i, whose
    variance k / (k - 1) sum_i (total_i - p count_i)^2 / n^2 is estimated with k - 1 degrees of
    freedom (Cochran 1977, Sec. 2.11). It holds for any correlation, but it is far too narrow where
    batches agree by chance, as they do near accuracies 0 and 1: batches without any correct image
    have variance 0.

    The second is therefore Wilson's interval of n / (1 + (m - 1) r) images (Kish 1965), where m is
    the mean batch size of an image, sum_i count_i^2 / n, and r a correlation within batches that
    the data do not exclude: its upper bound at the level of 99 % from the F statistic of an
    analysis of variance (Searle 1971), at most 0.2. If all images agree, the data exclude no
    correlation, and r = 0.2. If batches agree better than independent images would, r = 0.

    `python -m benchmarks.coverage` measures how often the union contains the true accuracy.

    Args:
        total: sum of the correctness per batch, [..., k].
        squares: sum of its squares, [..., k]; equal to `total` if all images are correct or wrong.
        count: images per batch, [k].
        level: confidence level; default: 0.95.
    """
    k = len(count)
    n = count.sum()
    p = np.clip(total.sum(-1) / n, 0.0, 1.0)
    residual = total - p[..., None] * count
    half = stdtrit(k - 1, (1 + level) / 2) * (k / (k - 1) * (residual**2).sum(-1)) ** 0.5 / n
    size = (count**2).sum() / n
    design = 1 + (size - 1) * _correlation(total, squares, count)
    low, high = wilson_bounds(p, n / design, level)
    return np.clip(p - half, 0.0, low), np.clip(p + half, high, 1.0)


def _correlation(total: Floats, squares: Floats, count: Floats) -> Floats:
    """The largest correlation within batches that the data do not exclude, in [0, 0.2]."""
    k = len(count)
    n = count.sum()
    mean_squares = total**2 / count
    between = mean_squares.sum(-1) - total.sum(-1) ** 2 / n
    within = (squares - mean_squares).sum(-1)
    informative = (within > _CONSTANT) & (n > k)
    freedom = max(n - k, 1)
    ratio = between / (k - 1) / np.where(informative, within, 1.0) * freedom
    excess = np.clip(ratio, 0.0, None) / fdtri(k - 1, freedom, _EXCLUDED) - 1
    size = (n - (count**2).sum() / n) / (k - 1)  # equal to the batch size if all are equal
    upper = excess / (excess + size)
    return np.where(informative, np.clip(upper, 0.0, _LARGEST_CORRELATION), _LARGEST_CORRELATION)


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
    low = float(betaincinv(successes, n - successes + 1, tail)) if successes else 0.0
    high = float(betaincinv(successes + 1, n - successes, 1 - tail)) if successes < n else 1.0
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
    # The two tails of a binomial distribution with probability 1/2 are equal.
    p = min(1.0, 2 * float(bdtr(min(only_second, either - only_second), either, 0.5)))
    return Paired(only_first, only_second, p)
