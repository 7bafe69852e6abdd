"""Fixed-point solvers, their results, and statistics over many solves."""

from saddlepoint.solvers.equilibrium import ConvergedState, EquilibriumModel
from saddlepoint.solvers.inverse import Inverse
from saddlepoint.solvers.methods import Anderson, Broyden, Picard
from saddlepoint.solvers.solution import Solution, SolveInfo, Status
from saddlepoint.solvers.solver import FixedPointMap, Solver
from saddlepoint.solvers.stats import SolverStats, Start

__all__ = [
    "Anderson",
    "Broyden",
    "ConvergedState",
    "EquilibriumModel",
    "FixedPointMap",
    "Inverse",
    "Picard",
    "Solution",
    "SolveInfo",
    "Solver",
    "SolverStats",
    "Start",
    "Status",
]
