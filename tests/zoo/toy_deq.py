"""Small equilibrium models with weights in closed form."""

import torch
from tests.equilibria import Affine, Curved
from tests.problems import keys, normal, uniform

from saddlepoint.defenses import Broyden, Context

N = 5
INPUTS = 7
STATES = 12
X = uniform(0, N, INPUTS)
TIGHT = Broyden(steps=40, tolerance=1e-12)


class Toy:
    """An equilibrium network with a known fixed point."""

    def __init__(self, model, classes=4):
        self.model = model
        self.weight = normal(9, classes, STATES)
        self.heads = 0

    def inject(self, x):
        return self.model.inject(x.flatten(1))

    def start(self, u):
        return torch.zeros_like(u)

    def cell(self, z, u):
        return self.model.cell(z, u)

    def head(self, z):
        self.heads += 1
        return z @ self.weight.T


def toy(**kinds):
    return Toy(Curved.contractive(3, states=STATES, inputs=INPUTS, **kinds))


def affine():
    return Toy(Affine.contractive(3, states=STATES, inputs=INPUTS))


def traced(defense, x=X, **options):
    return defense.trace(x, Context(keys(len(x)), **options))


def views_by_name(defense, x=X):
    return {view.name: view.logits for view in traced(defense, x).views}
