"""Gradients: rules replace backward passes inside a forward pass, estimators work around it."""

from saddlepoint.gradients.adjoint import SimultaneousAdjoint
from saddlepoint.gradients.detached import Detached
from saddlepoint.gradients.estimator import (
    SPSA,
    Backprop,
    EoT,
    Estimator,
    Evaluation,
    FixedRandomness,
    ObjectiveFunction,
    Smoothed,
    ValueAndGradient,
    once,
)
from saddlepoint.gradients.implicit import Implicit, SharedInverse
from saddlepoint.gradients.phantom import Phantom
from saddlepoint.gradients.rule import BPDA, Checkpointed, Exact, Rule
from saddlepoint.gradients.solve import Solve

__all__ = [
    "BPDA",
    "SPSA",
    "Backprop",
    "Checkpointed",
    "Detached",
    "EoT",
    "Estimator",
    "Evaluation",
    "Exact",
    "FixedRandomness",
    "Implicit",
    "ObjectiveFunction",
    "Phantom",
    "Rule",
    "SharedInverse",
    "SimultaneousAdjoint",
    "Smoothed",
    "Solve",
    "ValueAndGradient",
    "once",
]
