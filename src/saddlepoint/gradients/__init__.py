"""Gradients: rules inside a forward pass, estimators around it."""

from saddlepoint.gradients.adjoint import SimultaneousAdjoint
from saddlepoint.gradients.detached import Detached
from saddlepoint.gradients.estimator import SPSA, Backprop, EoT, Estimator, FixedCoins, Objective, Reading, Slope, Smoothed, once
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
    "Exact",
    "FixedCoins",
    "Implicit",
    "Objective",
    "Phantom",
    "Reading",
    "Rule",
    "SharedInverse",
    "SimultaneousAdjoint",
    "Slope",
    "Smoothed",
    "Solve",
    "once",
]
