"""Defences: what they show, what they are handed, what a user implements."""

from saddlepoint.defense.base import Access, BlackBox, Defense, Memory, Plain, Unit
from saddlepoint.defense.context import Context
from saddlepoint.defense.trace import Answer, Trace, View, mean, view
from saddlepoint.solving import Anderson, Broyden, Picard, Solution, Solver, Status

__all__ = [
    "Access",
    "Anderson",
    "Answer",
    "BlackBox",
    "Broyden",
    "Context",
    "Defense",
    "Memory",
    "Picard",
    "Plain",
    "Solution",
    "Solver",
    "Status",
    "Trace",
    "Unit",
    "View",
    "mean",
    "view",
]
