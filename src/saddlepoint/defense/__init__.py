"""Defences: what they show, what they are handed, what a user implements."""

from saddlepoint.defense.base import Access, BlackBox, Defense, Memory, Plain, Unit
from saddlepoint.defense.context import Context
from saddlepoint.defense.exits import (
    Mix,
    MultiExit,
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
from saddlepoint.defense.trace import Answer, Trace, View, mean, view

__all__ = [
    "Access",
    "Answer",
    "BlackBox",
    "Context",
    "Defense",
    "Memory",
    "Mix",
    "MultiExit",
    "Plain",
    "Static",
    "Strategy",
    "Subset",
    "Trace",
    "Unit",
    "View",
    "all_subsets",
    "exit_name",
    "exits_mean",
    "intervals",
    "mean",
    "mean_logits",
    "membership",
    "refuse_subset",
    "subset_name",
    "view",
]
