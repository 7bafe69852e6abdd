"""How long the rest of a run takes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

CLEAN = 0  # the clean images are the first adversary of every plan


class Pace:
    """How long the rest takes, if each adversary goes on as it began; one not yet seen is taken for the average of the others.

    left = elapsed * (work left) / (work done), work in seconds of one worker: it holds for any number of workers.
    """

    def __init__(self, examples: Sequence[tuple[int, int]]) -> None:
        """`examples`: the adversary and the number of images of every cell that is to come."""
        self._left: dict[int, int] = {}
        for adversary, count in examples:
            self._left[adversary] = self._left.get(adversary, 0) + count
        self._done: dict[int, int] = {}
        self._spent: dict[int, float] = {}
        self._passes: dict[int, float] = {}

    def add(self, adversary: int, count: int, seconds: float, passes: float = 0.0) -> None:
        self._left[adversary] = self._left.get(adversary, 0) - count
        self._done[adversary] = self._done.get(adversary, 0) + count
        self._spent[adversary] = self._spent.get(adversary, 0.0) + seconds
        self._passes[adversary] = self._passes.get(adversary, 0.0) + passes

    def left(self, elapsed: float) -> float:
        """In seconds; infinite as long as nothing but the clean images, which tell nothing about attacks, has been seen."""
        rest = self._rest(self._spent)
        spent = sum(self._spent.values())
        if not math.isfinite(rest) or not spent:
            return math.inf if any(self._left.values()) else 0.0
        return elapsed * rest / spent

    @property
    def passes(self) -> float:
        """Forward and backward passes spent."""
        return sum(self._passes.values())

    def passes_left(self) -> float:
        return self._rest(self._passes)

    def _rest(self, spent: Mapping[int, float]) -> float:
        """What the images that are left will take of a quantity, at each adversary's own rate so far."""
        rates = {a: spent[a] / done for a, done in self._done.items() if a != CLEAN}
        if not rates:
            return math.inf if any(self._left.values()) else 0.0
        average = sum(rates.values()) / len(rates)
        return sum(rates.get(a, average) * count for a, count in self._left.items() if a != CLEAN)


def remaining(seconds: float) -> str:
    return f"about {duration(seconds)} left" if math.isfinite(seconds) else "time left unknown"


def duration(seconds: float) -> str:
    """`42 s`, `3 min 20 s`, `2 h 5 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
