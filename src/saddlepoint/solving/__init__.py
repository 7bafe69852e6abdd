"""Fixed points of functions: solvers, and what they hand back."""

from saddlepoint.solving.inverse import Inverse
from saddlepoint.solving.methods import Anderson, Broyden, Picard
from saddlepoint.solving.solution import Solution, Status
from saddlepoint.solving.solver import Cell, Solver

__all__ = ["Anderson", "Broyden", "Cell", "Inverse", "Picard", "Solution", "Solver", "Status"]
