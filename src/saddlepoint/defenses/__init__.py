"""Defenses: the base class, traces of views, the context of a call, multi-exit networks."""

from saddlepoint.defenses.base import Access, BlackBox, Defense, Memory, Plain, Unit
from saddlepoint.defenses.context import Context
from saddlepoint.defenses.gates import (
    Confident,
    LowEntropy,
    average_cost,
    exit_logits,
    frequencies,
    ratio_for,
)
from saddlepoint.defenses.multi_exit import (
    Mix,
    MultiExit,
    Static,
    Strategy,
    Subset,
    all_subsets,
    check_subset,
    exit_name,
    exits_mean,
    intervals,
    mean_logits,
    membership,
    subset_name,
)
from saddlepoint.defenses.trace import Answer, Trace, View, mean, view
from saddlepoint.defenses.wrapper import DefenseWrapper, innermost
from saddlepoint.solvers import Anderson, Broyden, Picard, Solution, Solver, Status

__all__ = [
    "Access",
    "Anderson",
    "Answer",
    "BlackBox",
    "Broyden",
    "Confident",
    "Context",
    "Defense",
    "DefenseWrapper",
    "LowEntropy",
    "Memory",
    "Mix",
    "MultiExit",
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
    "check_subset",
    "exit_logits",
    "exit_name",
    "exits_mean",
    "frequencies",
    "innermost",
    "intervals",
    "mean",
    "mean_logits",
    "membership",
    "ratio_for",
    "subset_name",
    "view",
]
