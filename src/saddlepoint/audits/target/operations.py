"""Operations of a target through which no useful gradient passes, each with a surrogate.

An operation is a torch function that a line of the target's code calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from saddlepoint.audits.target.source_lines import SourceLine
from saddlepoint.gradients import BPDA, Rule

NO_GRAD = "no_grad"
# Comparisons a > b: the sign of a in the difference that is compared with zero.
COMPARISONS = {"gt": 1, "ge": 1, "lt": -1, "le": -1, "greater": 1, "less": -1}
FLAT = frozenset(["round", "floor", "ceil", "trunc", "fix", "detach", "data"])
CUTS = frozenset(["detach", "data", NO_GRAD])  # code that cuts a gradient on purpose
PERIODIC = frozenset(["remainder", "mod", "fmod", "frac"])
QUOTIENTS = frozenset(["floor_divide", "floordiv"])
SIGNS = frozenset(["sign", "sgn", "heaviside"])
HIGHEST = frozenset(["argmax", "max", "topk", "sort"])  # they select by the highest score first
CHOICES = HIGHEST | frozenset(["argmin", "min", "argsort"])
COUNTS = frozenset(["bucketize", "searchsorted"])  # they count the boundaries below a number
STEPS = frozenset(COMPARISONS) | SIGNS | COUNTS


@dataclass(frozen=True)
class Operation:
    """A torch function that a line of a target calls, and its surrogate."""

    line: SourceLine
    function: str
    width: float = 1.0  # of a smooth step or of a softmax; other surrogates have none
    passes: bool = True  # False: the surrogate is a constant

    @property
    def key(self) -> tuple[str, str]:
        """Line and function, which identify it."""
        return self.line.place, self.function

    @property
    def surrogate(self) -> str:
        """What replaces its backward pass, in words."""
        if not self.passes:
            return "constant"
        if self.function in STEPS:
            return f"sigmoid of width {self.width:.2g}"
        if self.function in CHOICES:
            return f"softmax of temperature {self.width:.2g}"
        if self.function == NO_GRAD:
            return "recorded gradients"
        return "identity" if self.function.islower() else "gradient of the forward pass"

    @property
    def has_width(self) -> bool:
        """Whether its surrogate has a width."""
        return self.function in STEPS or self.function in CHOICES

    def __str__(self) -> str:
        return f"{self.line.place} {self.function}"

    def under(self, rules: Mapping[str, Rule]) -> Operation:
        """The operation with the width that the rules of an attacker give it."""
        rule = rules.get(str(self))
        return (
            replace(self, width=rule.times * self.width) if isinstance(rule, OtherWidth) else self
        )


@dataclass(frozen=True)
class OtherWidth(BPDA):
    """BPDA at an operation whose surrogate is several times as wide as the one that was chosen."""

    times: float = 1.0
