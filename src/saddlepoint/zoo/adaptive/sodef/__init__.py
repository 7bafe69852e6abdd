"""SODEF: a neural ODE with stable equilibria between a network's features and its classifier."""

from saddlepoint.zoo.adaptive.sodef.defense import SODEF, StableTraining
from saddlepoint.zoo.adaptive.sodef.neural_ode import (
    Dopri5,
    Integrator,
    RungeKutta,
    SineField,
    StableODE,
)
from saddlepoint.zoo.adaptive.sodef.stability import Stability, simplex

__all__ = [
    "SODEF",
    "Dopri5",
    "Integrator",
    "RungeKutta",
    "SineField",
    "Stability",
    "StableODE",
    "StableTraining",
    "simplex",
]
