"""Defences: what they show, what they are handed, what a user implements."""

from saddlepoint.defense.base import Access, BlackBox, Defense, Memory, Plain, Unit
from saddlepoint.defense.context import Context
from saddlepoint.defense.exits import (
    Mix,
    MultiExit,
    Numbered,
    Static,
    Strategy,
    Subset,
    all_subsets,
    exit_name,
    exits_mean,
    intervals,
    mean_logits,
    membership,
    refuse_subset,
    subset_name,
)
from saddlepoint.defense.gates import Confident, LowEntropy, average_cost, exit_logits, frequencies, ratio_for
from saddlepoint.defense.trace import Answer, Trace, View, mean, view
from saddlepoint.solving import Anderson, Broyden, Picard, Solution, Solver, Status

__all__ = [
    "Access",
    "Anderson",
    "Answer",
    "BlackBox",
    "Broyden",
    "Confident",
    "Context",
    "Defense",
    "LowEntropy",
    "Memory",
    "Mix",
    "MultiExit",
    "Numbered",
    "Picard",
    "Plain",
    "Solution",
    "Solver",
    "Static",
    "Status",
    "Strategy",
    "Subset",
    "Trace",
    "Unit",
    "View",
    "all_subsets",
    "average_cost",
    "exit_logits",
    "exit_name",
    "exits_mean",
    "frequencies",
    "intervals",
    "mean",
    "mean_logits",
    "membership",
    "ratio_for",
    "refuse_subset",
    "subset_name",
    "view",
]
