"""Trained networks and concrete defences."""

from saddlepoint.zoo.models import Entry, Measured, entry, load, names

__all__ = ["Entry", "Measured", "entry", "load", "names"]
