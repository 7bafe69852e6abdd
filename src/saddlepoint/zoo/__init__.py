"""Trained networks and concrete defenses."""

from saddlepoint.zoo.audited import AuditRecord, audited
from saddlepoint.zoo.build import check_accuracy, rebuild
from saddlepoint.zoo.models import Defended, target
from saddlepoint.zoo.recipes import RECIPES, recipe
from saddlepoint.zoo.records import Entry, TrainingCheck, entry, load, names

__all__ = [
    "RECIPES",
    "AuditRecord",
    "Defended",
    "Entry",
    "TrainingCheck",
    "audited",
    "check_accuracy",
    "entry",
    "load",
    "names",
    "rebuild",
    "recipe",
    "target",
]
