"""Intervals, what they cover, and paired comparisons."""

from __future__ import annotations

from typing import NamedTuple

import torch
from scipy.stats import beta, binomtest, norm
from torch import Tensor

from saddlepoint.defenses import Unit
from saddlepoint.evaluation.bootstrap import bootstrap

DRAWN = "which images were drawn"


class Interval(NamedTuple):
    """A confidence interval for an accuracy. It never covers how good the attack was."""

    low: float
    high: float
    level: float
    covers: str = DRAWN

    def __str__(self) -> str:
        return f"{100 * self.low:.1f} to {100 * self.high:.1f} %"


class Paired(NamedTuple):
    """Two answers to the same images: on how many only one of them is right, and how likely chance makes them so unequal."""

    only_first: int
    only_second: int
    p: float  # of a difference at least as large in either direction, if both were equally good

    @property
    def second_better(self) -> bool:
        return self.only_second > self.only_first and self.p < 0.05


def wilson(share: float, n: int, level: float = 0.95) -> Interval:
    """Wilson's score interval: all p for which |share - p| <= z sqrt(p (1 - p) / n) (Wilson 1927).

    `share` may be a mean of numbers in [0, 1], as for a random defense judged over several draws: such numbers vary no more than
    coin tosses of the same mean, so the interval is then wider than it need be.
    """
    if not (0 <= share <= 1 and n >= 1):
        raise ValueError(
            f"an interval needs a share in [0, 1] of at least one example, got share={share}, n={n}."
        )
    z = float(norm.ppf((1 + level) / 2))
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * (share * (1 - share) / n + z * z / (4 * n * n)) ** 0.5
    return Interval(max(0.0, middle - half), min(1.0, middle + half), level)


def over_units(correct: Tensor, group: Tensor, unit: Unit, level: float = 0.95) -> Interval:
    """The interval of mean(correct [N]) where images with the same number in `group` [N], counted from 0, were answered together.

    Images that are answered alone are independent: Wilson. Else whole units are drawn again (bootstrap), and the interval is no
    narrower than Wilson's: few units that happen to agree prove nothing. Of a single unit nothing can be drawn again.
    """
    alone = wilson(float(correct.double().mean()), len(correct), level)
    if unit == "example":
        return alone
    members = [correct.double()[group == number] for number in range(int(group.amax()) + 1)]
    if len(members) == 1:
        return alone._replace(
            covers=f"{DRAWN}, as if each were answered alone; all belong to one {unit}, so it is too narrow"
        )
    total = torch.stack([m.sum() for m in members])
    count = torch.tensor([len(m) for m in members], dtype=torch.float64)
    again = bootstrap(
        lambda rows: float(total[rows].sum() / count[rows].sum()), len(members), level=level
    )
    covers = f"which {len(members)} {'batches' if unit == 'batch' else 'streams'} of images were drawn: whole ones are drawn again"
    return Interval(min(again.low, alone.low), max(again.high, alone.high), level, covers)


def clopper_pearson(successes: int, n: int, level: float = 0.95) -> Interval:
    """The exact interval of a binomial share: P(at least `successes` | low) = P(at most `successes` | high) = (1 - level) / 2.

    Its coverage is never below the level (Clopper & Pearson 1934).
    """
    if not 0 <= successes <= n or n < 1:
        raise ValueError(f"a share needs 0 <= successes <= n with n >= 1, got {successes} of {n}.")
    tail = (1 - level) / 2
    low = float(beta.ppf(tail, successes, n - successes + 1)) if successes else 0.0
    high = float(beta.ppf(1 - tail, successes + 1, n - successes)) if successes < n else 1.0
    return Interval(low, high, level)


def mcnemar(first: Tensor, second: Tensor) -> Paired:
    """The exact test of McNemar (1947) on [N] right answers of two: of b + c images that one alone gets, c ~ Bin(b + c, 1/2).

    Shares of draws count as right from one half on.
    """
    if first.shape != second.shape or first.ndim != 1:
        raise ValueError(
            f"a paired comparison needs the same images twice, got shapes {list(first.shape)} and {list(second.shape)}."
        )
    a = first >= 0.5
    b = second >= 0.5
    only_first = int((a & ~b).sum())
    only_second = int((b & ~a).sum())
    both = only_first + only_second
    return Paired(
        only_first, only_second, float(binomtest(only_second, both, 0.5).pvalue) if both else 1.0
    )
