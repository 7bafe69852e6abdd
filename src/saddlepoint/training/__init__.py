"""Training: one loop, interchangeable losses, recipes."""

from saddlepoint.training.exits import MaxAverageTraining, OverExits
from saddlepoint.training.fit import Epoch, Split, Trained, fit, split
from saddlepoint.training.learned_weights import LearnedWeights
from saddlepoint.training.method import (
    FAT,
    MART,
    TRADES,
    FastTraining,
    GrowingTau,
    HalfAdversarial,
    Method,
    PGDTraining,
    Standard,
)
from saddlepoint.training.recipe import (
    SGD,
    Adam,
    Cosine,
    Nesterov,
    Piecewise,
    Recipe,
    Shift,
    initial,
)

__all__ = [
    "FAT",
    "MART",
    "SGD",
    "TRADES",
    "Adam",
    "Cosine",
    "Epoch",
    "FastTraining",
    "GrowingTau",
    "HalfAdversarial",
    "LearnedWeights",
    "MaxAverageTraining",
    "Method",
    "Nesterov",
    "OverExits",
    "PGDTraining",
    "Piecewise",
    "Recipe",
    "Shift",
    "Split",
    "Standard",
    "Trained",
    "fit",
    "initial",
    "split",
]
