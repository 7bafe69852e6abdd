"""Gradients: rules inside a forward pass, estimators around it."""

from saddlepoint.gradients.estimator import SPSA, Backprop, EoT, Estimator, FixedCoins, Objective, Reading, Slope
from saddlepoint.gradients.rule import BPDA, Checkpointed, Exact, Rule

__all__ = [
    "BPDA",
    "SPSA",
    "Backprop",
    "Checkpointed",
    "EoT",
    "Estimator",
    "Exact",
    "FixedCoins",
    "Objective",
    "Reading",
    "Rule",
    "Slope",
]
