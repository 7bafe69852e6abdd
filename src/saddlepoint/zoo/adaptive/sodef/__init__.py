"""SODEF: a neural ODE, trained to have stable equilibria, between the features of a network and its answer."""

from saddlepoint.zoo.adaptive.sodef.defense import SODEF, StableTraining
from saddlepoint.zoo.adaptive.sodef.flow import Dopri5, Integrator, RungeKutta, SineField, StableODE
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
