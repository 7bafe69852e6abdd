"""A defense whose true robust accuracy is known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from saddlepoint.audits import Target
from saddlepoint.selftests.problem import Problem, left


@dataclass(frozen=True)
class Truth:
    """The robust accuracy against the strongest attack there is. Of a random defense, its expectation over the defense's coins."""

    low: float
    high: float
    random: bool = (
        False  # then a finite number of draws is off by chance, and an evaluator's interval counts
    )

    @classmethod
    def of(cls, right: Tensor | float, *, random: bool = False) -> Truth:
        """From what is right [N], or the probability that it is, of every image at its worst point."""
        value = float(right.double().mean()) if isinstance(right, Tensor) else right
        return cls(value, value, random)

    def __str__(self) -> str:
        shown = f"{100 * self.low:.1f}"
        return shown if self.low == self.high else f"{shown} to {100 * self.high:.1f}"


@dataclass(frozen=True)
class Case:
    """A problem, a defense on it, and the truth, which code computes from the problem."""

    name: str
    why: str  # whom it fools, and how
    problem: Callable[[], Problem]
    defense: Callable[[Problem], Target]  # a new one at every call: some of them keep state
    truth: Callable[[Problem], Truth]


def unchanged(problem: Problem) -> Truth:
    """The truth of a defense that changes gradients, scores or the order of calls, and no answer of the linear classifier."""
    return Truth.of(left(problem, *problem.box()))


def after(pixelwise: Callable[[Tensor], Tensor]) -> Callable[[Problem], Truth]:
    """The truth behind a map that acts on each pixel alone and keeps their order: a box goes to a box, corners to corners."""

    def truth(problem: Problem) -> Truth:
        low, high = problem.box()
        return Truth.of(left(problem, pixelwise(low), pixelwise(high)))

    return truth
