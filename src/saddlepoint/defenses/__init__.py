"""Defenses: the base class, traces of views, the context of a call, multi-exit networks."""

from saddlepoint.defenses.base import (
    Access,
    BlackBox,
    Defense,
    Memory,
    OutputError,
    Plain,
    Unit,
)
from saddlepoint.defenses.context import Context
from saddlepoint.defenses.decoupled import AmongBatch, decoupled
from saddlepoint.defenses.gates import (
    Confident,
    LowEntropy,
    average_cost,
    exit_logits,
    frequencies,
    ratio_for,
)
from saddlepoint.defenses.modes import eval_mode
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
from saddlepoint.defenses.outputs import (
    BinaryLogits,
    BinaryProbabilities,
    SelectLogits,
    output_entries,
    two_classes,
)
from saddlepoint.defenses.trace import Answer, Trace, View, mean, view
from saddlepoint.defenses.wrapper import DefenseWrapper, innermost
from saddlepoint.solvers import Anderson, Broyden, Picard, Solution, Solver, Status

__all__ = [
    "Access",
    "AmongBatch",
    "Anderson",
    "Answer",
    "BinaryLogits",
    "BinaryProbabilities",
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
    "OutputError",
    "Picard",
    "Plain",
    "SelectLogits",
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
    "decoupled",
    "eval_mode",
    "exit_logits",
    "exit_name",
    "exits_mean",
    "frequencies",
    "innermost",
    "intervals",
    "mean",
    "mean_logits",
    "membership",
    "output_entries",
    "ratio_for",
    "subset_name",
    "two_classes",
    "view",
]
