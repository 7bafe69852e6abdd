"""A self-test case: a defense with known true robust accuracy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from saddlepoint.audits import Target
from saddlepoint.selftests.problem import Problem, left


@dataclass(frozen=True)
class Truth:
    """The robust accuracy against the strongest possible attack, as an interval.

    For a randomized defense it is the expectation over the randomness of the defense.
    """

    low: float  # in [0, 1]
    high: float  # in [0, 1]; equal to `low` if the accuracy is known exactly
    # Whether the defense is randomized. A finite number of draws then deviates from the truth by
    # chance, and the interval of an evaluator counts.
    random: bool = False

    @classmethod
    def of(cls, correct: Tensor | float, *, random: bool = False) -> Truth:
        """Build an exactly known truth.

        Args:
            correct: The accuracy, or [N]: for each image at its worst point, whether it is
                classified correctly, or the probability of it.
            random: Whether the defense is randomized; default False.
        """
        value = float(correct.double().mean()) if isinstance(correct, Tensor) else correct
        return cls(value, value, random)

    def __str__(self) -> str:
        shown = f"{100 * self.low:.1f}"
        return shown if self.low == self.high else f"{shown} to {100 * self.high:.1f}"


@dataclass(frozen=True)
class Case:
    """A problem, a defense for it, and a function that computes its true robust accuracy."""

    name: str
    why: str  # the property that makes evaluations fail
    problem: Callable[[], Problem]
    defense: Callable[[Problem], Target]  # returns a new instance, because some keep state
    truth: Callable[[Problem], Truth]


def linear_truth(problem: Problem) -> Truth:
    """The truth of a defense that does not change the predictions of the linear classifier.

    Such a defense changes only gradients, scores, or the effect of repeated calls.
    """
    return Truth.of(left(problem, *problem.box()))


def truth_after(pixelwise: Callable[[Tensor], Tensor]) -> Callable[[Problem], Truth]:
    """The truth of the linear classifier behind a monotone map of each pixel.

    Such a map takes a box to a box and its corners to corners.
    """

    def truth(problem: Problem) -> Truth:
        low, high = problem.box()
        return Truth.of(left(problem, pixelwise(low), pixelwise(high)))

    return truth
