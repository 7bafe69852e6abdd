"""Estimates how long the rest of a run takes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

CLEAN = 0  # index of the clean images, which are the first adversary of every plan


class TimeEstimate:
    """Estimates the time and the passes that the rest of a run takes.

    Each adversary is assumed to keep its rate per image. An adversary that has not run yet is
    assumed to have the average rate of the others.

    left = elapsed * (work left) / (work done), where work is in seconds of one worker. The
    formula therefore holds for any number of workers.
    """

    def __init__(self, examples: Sequence[tuple[int, int]]) -> None:
        """`examples`: the adversary and the number of images of every cell that is missing."""
        self._left: dict[int, int] = {}
        for adversary, count in examples:
            self._left[adversary] = self._left.get(adversary, 0) + count
        self._done: dict[int, int] = {}
        self._spent: dict[int, float] = {}
        self._passes: dict[int, float] = {}

    def add(self, adversary: int, count: int, seconds: float, passes: float = 0.0) -> None:
        """Record a finished cell.

        Args:
            adversary: Index of the adversary.
            count: Number of images of the cell.
            seconds: Time that one worker needed for it.
            passes: Forward and backward passes, summed over the images.
        """
        self._left[adversary] = self._left.get(adversary, 0) - count
        self._done[adversary] = self._done.get(adversary, 0) + count
        self._spent[adversary] = self._spent.get(adversary, 0.0) + seconds
        self._passes[adversary] = self._passes.get(adversary, 0.0) + passes

    def left(self, elapsed: float) -> float:
        """Estimated seconds until the end.

        Infinite while only clean images have been evaluated: they say nothing about attacks.
        """
        rest = self._rest(self._spent)
        spent = sum(self._spent.values())
        if not math.isfinite(rest) or not spent:
            return math.inf if any(self._left.values()) else 0.0
        return elapsed * rest / spent

    @property
    def passes(self) -> float:
        """Forward and backward passes so far."""
        return sum(self._passes.values())

    def passes_left(self) -> float:
        """Estimated forward and backward passes until the end."""
        return self._rest(self._passes)

    def _rest(self, spent: Mapping[int, float]) -> float:
        """How much of a quantity the remaining images need, at the rate of each adversary."""
        rates = {a: spent[a] / done for a, done in self._done.items() if a != CLEAN}
        if not rates:
            return math.inf if any(self._left.values()) else 0.0
        average = sum(rates.values()) / len(rates)
        return sum(rates.get(a, average) * count for a, count in self._left.items() if a != CLEAN)


def remaining(seconds: float) -> str:
    """The remaining time as text, for example `about 3 min 20 s left`."""
    return f"about {duration(seconds)} left" if math.isfinite(seconds) else "time left unknown"


def duration(seconds: float) -> str:
    """The duration as text: `42 s`, `3 min 20 s`, `2 h 5 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
