"""Trained networks and concrete defenses."""

from saddlepoint.zoo.models import Defended, Entry, Measured, entry, load, names, target

__all__ = ["Defended", "Entry", "Measured", "entry", "load", "names", "target"]
