"""Trained networks and concrete defenses."""

from saddlepoint.zoo.build import measure, rebuild
from saddlepoint.zoo.models import Defended, target
from saddlepoint.zoo.recipes import RECIPES, recipe
from saddlepoint.zoo.records import Entry, Measured, entry, load, names

__all__ = [
    "RECIPES",
    "Defended",
    "Entry",
    "Measured",
    "entry",
    "load",
    "measure",
    "names",
    "rebuild",
    "recipe",
    "target",
]
