"""Intervals, and what they cover."""

from __future__ import annotations

from typing import NamedTuple

from scipy.stats import norm


class Interval(NamedTuple):
    """A confidence interval for an accuracy. It covers which images were drawn, not how good the attack was."""

    low: float
    high: float
    level: float

    def __str__(self) -> str:
        return f"{100 * self.low:.1f} to {100 * self.high:.1f} %"


def wilson(share: float, n: int, level: float = 0.95) -> Interval:
    """Wilson's score interval: all p for which |share - p| <= z sqrt(p (1 - p) / n) (Wilson 1927).

    `share` may be a mean of numbers in [0, 1], as for a random defence judged over several draws: such numbers vary no more than
    coin tosses of the same mean, so the interval is then wider than it need be.
    """
    if not (0 <= share <= 1 and n >= 1):
        raise ValueError(f"an interval needs a share in [0, 1] of at least one example, got share={share}, n={n}.")
    z = float(norm.ppf((1 + level) / 2))
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * (share * (1 - share) / n + z * z / (4 * n * n)) ** 0.5
    return Interval(max(0.0, middle - half), min(1.0, middle + half), level)
