"""Fixed points of functions: solvers, and what they hand back."""

from saddlepoint.solving.inverse import Inverse
from saddlepoint.solving.methods import Anderson, Broyden, Picard
from saddlepoint.solving.notes import Notes, Start
from saddlepoint.solving.settles import Settled, Settles
from saddlepoint.solving.solution import Ending, Solution, Status
from saddlepoint.solving.solver import Cell, Solver

__all__ = [
    "Anderson",
    "Broyden",
    "Cell",
    "Ending",
    "Inverse",
    "Notes",
    "Picard",
    "Settled",
    "Settles",
    "Solution",
    "Solver",
    "Start",
    "Status",
]
