"""Defences: what they show, what they are handed, what a user implements."""

from saddlepoint.defense.base import Access, BlackBox, Defense, Memory, Plain, Unit
from saddlepoint.defense.context import Context
from saddlepoint.defense.trace import Answer, Trace, View, mean, view

__all__ = [
    "Access",
    "Answer",
    "BlackBox",
    "Context",
    "Defense",
    "Memory",
    "Plain",
    "Trace",
    "Unit",
    "View",
    "mean",
    "view",
]
