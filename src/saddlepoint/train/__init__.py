"""Training: one loop, interchangeable losses, recipes."""

from saddlepoint.train.equilibrium import JacobianPenalty, Stack, mean_square_jacobian
from saddlepoint.train.equilibrium_training import EquilibriumTraining
from saddlepoint.train.exits import MaxAverageTraining, OverExits
from saddlepoint.train.fit import Epoch, Split, Trained, fit, split
from saddlepoint.train.learned import LearnedWeights
from saddlepoint.train.method import FAT, MART, TRADES, FastTraining, HalfAdversarial, Method, PGDTraining, Standard
from saddlepoint.train.rebuild import measure, rebuild
from saddlepoint.train.recipe import SGD, Adam, Cosine, Nesterov, Piecewise, Recipe, Shift
from saddlepoint.train.recipes import RECIPES, recipe

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
