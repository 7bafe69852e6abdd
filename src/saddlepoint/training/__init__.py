"""Training: one loop, interchangeable losses, recipes."""

from saddlepoint.training.equilibrium import JacobianPenalty, Stack, mean_square_jacobian
from saddlepoint.training.equilibrium_training import EquilibriumTraining
from saddlepoint.training.exits import MaxAverageTraining, OverExits
from saddlepoint.training.fit import Epoch, Split, Trained, fit, split
from saddlepoint.training.learned import LearnedWeights
from saddlepoint.training.method import (
    FAT,
    MART,
    TRADES,
    FastTraining,
    HalfAdversarial,
    Method,
    PGDTraining,
    Standard,
)
from saddlepoint.training.rebuild import measure, rebuild
from saddlepoint.training.recipe import SGD, Adam, Cosine, Nesterov, Piecewise, Recipe, Shift
from saddlepoint.training.recipes import RECIPES, recipe

__all__ = [
    "FAT",
    "MART",
    "RECIPES",
    "SGD",
    "TRADES",
    "Adam",
    "Cosine",
    "Epoch",
    "EquilibriumTraining",
    "FastTraining",
    "HalfAdversarial",
    "JacobianPenalty",
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
    "Stack",
    "Standard",
    "Trained",
    "fit",
    "mean_square_jacobian",
    "measure",
    "rebuild",
    "recipe",
    "split",
]
