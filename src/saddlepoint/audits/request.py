"""The request for an audit: target, data, threat model and settings, checked on creation."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from saddlepoint.audits.planning.budget import BUDGETS, Budget
from saddlepoint.audits.profile import ENGINE_OPTIONS, EngineOption
from saddlepoint.audits.target.admission import Target
from saddlepoint.evaluation import Adversary, Threat
from saddlepoint.locate import nearest


@dataclass(frozen=True)
class AuditRequest:
    """Everything that determines an audit."""

    target: Target
    x: Tensor  # clean images, [N, ...]
    y: Tensor  # labels, [N]
    threat: Threat
    budget: Budget = "standard"
    adversaries: tuple[Adversary, ...] = ()  # replace those that the budget would compose
    extra: tuple[Adversary, ...] = ()  # run beside them
    seed: int = 0
    batch_size: int = 128
    name: str = ""  # of the target; default: its class
    claim: float | None = None  # a robust accuracy to test, in [0, 1]
    allow_unusual: bool = False  # audit although accuracy or radius look like a mistake
    engine: EngineOption = "auto"  # whether attacks run on a faster copy of the target
    data: str = ""  # name of the data set
    classes: tuple[str, ...] = ()  # names of the classes
    command: str = ""  # the command line

    def __post_init__(self) -> None:
        if self.budget not in BUDGETS:
            known = ", ".join(BUDGETS)
            advice = nearest(str(self.budget), list(BUDGETS))
            raise ValueError(f"the budget is one of {known}, got {self.budget!r}.{advice}")
        if self.engine not in ENGINE_OPTIONS:
            known = ", ".join(ENGINE_OPTIONS)
            raise ValueError(f"the engine is one of {known}, got {self.engine!r}.")
        if self.batch_size < 1:
            raise ValueError(f"the batch size must be at least 1, got {self.batch_size}.")
        if self.claim is not None and not 0 <= self.claim <= 1:
            raise ValueError(
                f"a claimed accuracy is between 0 and 1, such as 0.62 for 62 %, got {self.claim}."
            )
        for adversary in (*self.adversaries, *self.extra):
            if not isinstance(adversary, Adversary):
                raise TypeError(
                    f"an adversary must subclass saddlepoint.Adversary, "
                    f"got {type(adversary).__name__}. Wrap an attack in Direct(name, attack)."
                )
        x, y = self.threat.images(self.x, self.y)
        object.__setattr__(self, "x", x)
        object.__setattr__(self, "y", y)
        if not self.name:
            object.__setattr__(self, "name", type(self.target).__name__)
