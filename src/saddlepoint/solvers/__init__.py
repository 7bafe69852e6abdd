"""Fixed points of functions: solvers, and what they hand back."""

from saddlepoint.solvers.equilibrium import ConvergedState, EquilibriumModel
from saddlepoint.solvers.inverse import Inverse
from saddlepoint.solvers.methods import Anderson, Broyden, Picard
from saddlepoint.solvers.solution import Solution, SolveInfo, Status
from saddlepoint.solvers.solver import Cell, Solver
from saddlepoint.solvers.stats import SolverStats, Start

__all__ = [
    "Anderson",
    "Broyden",
    "Cell",
    "ConvergedState",
    "EquilibriumModel",
    "Inverse",
    "Picard",
    "Solution",
    "SolveInfo",
    "Solver",
    "SolverStats",
    "Start",
    "Status",
]
