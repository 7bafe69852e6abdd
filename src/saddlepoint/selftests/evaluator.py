"""Whoever says how robust a model is, and what it says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, cast

import torch
from torch import Tensor, nn

from saddlepoint.attacks.spaces import Linf
from saddlepoint.audits import Target
from saddlepoint.audits.planning.suite import Budget
from saddlepoint.defenses import Context, Defense
from saddlepoint.rng import Keys
from saddlepoint.runs import audit


@dataclass(frozen=True)
class Report:
    """The robust accuracy, and whether the evaluator stands by it."""

    robust_accuracy: float
    interval: tuple[float, float] | None = None
    verdict: str = ""  # in its own words
    holds: bool = True  # False: it says itself that the number may be far too high


# (model, images, labels, radius in Linf) -> what it says. The model is a module from images to logits; an evaluator whose `takes`
# is "targets" is handed the target as it is, which may be a `Defense` or any callable.
Evaluator = Callable[..., "float | Report"]


@dataclass(frozen=True)
class Audited:
    """`saddlepoint.audit`."""

    budget: Budget = "standard"
    seed: int = 0
    takes: ClassVar[str] = "targets"

    @property
    def name(self) -> str:
        return f"saddlepoint {self.budget}"

    def __call__(self, target: Target, x: Tensor, y: Tensor, radius: float) -> Report:
        found = audit(
            target, x, y, threat=Linf(radius), budget=self.budget, seed=self.seed, batch_size=len(x)
        )
        return Report(
            found.robust_accuracy,
            found.interval[:2],
            found.verdict,
            found.verdict == "holds so far",
        )


class Opaque(nn.Module):
    """A target as peers meet it: a module from images to logits.

    Of several exits the last one answers; a defense adapts, traces and answers, with new coins at every call if it tosses any;
    labels are one-hot. The parameter is not used: some peers ask the first one for its device.
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
        return (
            nn.functional.one_hot(logits, self.classes).to(x.dtype) if logits.ndim == 1 else logits
        )
