"""Defences that learn from the examples they are asked about."""

from saddlepoint.zoo.transductive.dent import DENT, entropy, information
from saddlepoint.zoo.transductive.optimisers import Adam, AdaMod
from saddlepoint.zoo.transductive.tent import TENT, BatchStatistics

__all__ = [
    "DENT",
    "TENT",
    "AdaMod",
    "Adam",
    "BatchStatistics",
    "entropy",
    "information",
]
