"""Evaluators of robust accuracy, and the report that they return."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, cast

import torch
from torch import Tensor, nn

from saddlepoint.api import audit
from saddlepoint.attacks.spaces import Linf
from saddlepoint.audits import Target
from saddlepoint.audits.planning.budget import Budget
from saddlepoint.audits.verdict import Verdict
from saddlepoint.defenses import Context, Defense
from saddlepoint.rng import Keys


@dataclass(frozen=True)
class Report:
    """The robust accuracy that an evaluator found, and whether it warns about it."""

    robust_accuracy: float  # in [0, 1]
    interval: tuple[float, float] | None = None  # confidence interval, if the evaluator has one
    verdict: str = ""  # in the evaluator's own words
    holds: bool = True  # False: the evaluator warns that the number may be far too high


# (model, images, labels, Linf radius) -> robust accuracy or Report. The model is a module from
# images to logits. An evaluator with a true attribute `accepts_targets` receives the target itself,
# which may be a `Defense` or any callable.
Evaluator = Callable[..., "float | Report"]


@dataclass(frozen=True)
class AuditEvaluator:
    """`saddlepoint.audit` as an evaluator."""

    budget: Budget = "standard"
    seed: int = 0
    accepts_targets: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """Name in tables."""
        return f"saddlepoint {self.budget}" + (f", seed {self.seed}" if self.seed else "")

    def __call__(self, target: Target, x: Tensor, y: Tensor, radius: float) -> Report:
        found = audit(
            target, x, y, threat=Linf(radius), budget=self.budget, seed=self.seed, batch_size=len(x)
        )
        return Report(
            found.robust_accuracy,
            found.interval[:2],
            found.verdict,
            found.verdict is Verdict.CREDIBLE,
        )


class LogitsModule(nn.Module):
    """A target as a module from images to logits, for libraries that expect one.

    The output of a multi-exit network is its last exit. A defense adapts and returns its final
    answer, with new randomness at every call if it is randomized. Predicted labels become one-hot
    vectors. The parameter is unused; some libraries read the device from the first parameter.
    """

    def __init__(self, target: Target, classes: int) -> None:
        super().__init__()
        self.target = target
        self.classes = classes
        self.anchor = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(self.target, Defense):
            seed = int(torch.randint(0, 2**31, ())) if self.target.random else 0
            return self.target.respond(x, Context(Keys.of(seed, torch.arange(len(x)))))
        out = cast("Tensor | list[Tensor]", self.target(x))
        logits = out if isinstance(out, Tensor) else out[-1]
        if logits.ndim == 1:
            return nn.functional.one_hot(logits, self.classes).to(x.dtype)
        return logits
