"""A small smooth network, images for it, and four untrained adaptive defenses on it."""

from __future__ import annotations

import torch
from tests.problems import normal, uniform
from tests.zoo.adaptive import purifiers
from torch import nn

from saddlepoint.defenses import Context
from saddlepoint.gradients.rule import Rule
from saddlepoint.rng import Keys
from saddlepoint.zoo.adaptive import ATLD, SODEF, ClosedLoopControl, ContrastiveReversal
from saddlepoint.zoo.adaptive.atld import LogitDiscriminator
from saddlepoint.zoo.adaptive.closed_loop import AutoEncoderEmbedding, LinearEmbedding, auto_encoder
from saddlepoint.zoo.adaptive.contrastive import contrastive_head
from saddlepoint.zoo.adaptive.sodef import Dopri5, RungeKutta, SineField, StableODE

CLASSES = 4
SIDE = 8
LAYERS = ("input", "1", "5")
WIDTHS = {"input": (3, SIDE, SIDE), "1": (4, SIDE, SIDE), "5": (12,)}


def build_module(build, seed=0):
    """Build a module with weights from the seed and batch norm statistics other than 0 and 1."""
    module = purifiers.build_module(build, seed)
    for k, norm in enumerate(
        m for m in module.modules() if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d)
    ):
        norm.running_mean.copy_(0.1 * normal(900 + k, norm.num_features))
        norm.running_var.copy_(0.5 + uniform(950 + k, norm.num_features))
    return module


def network(seed=0):
    """Build a network [N, 3, 8, 8] -> [N, 4]; it is smooth, so finite differences are accurate."""
    return build_module(
        lambda: nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1),
            nn.Tanh(),
            nn.Conv2d(4, 6, 3, stride=2, padding=1),
            nn.Tanh(),
            nn.Flatten(),
            nn.Linear(96, 12),
            nn.Tanh(),
            nn.Linear(12, CLASSES),
        ),
        seed,
    )


def images(n=5, seed=1):
    """Draw images away from 0 and 1, where clipping is not differentiable."""
    return 0.3 + 0.4 * uniform(seed, n, 3, SIDE, SIDE)


def subspaces():
    """Return linear embeddings with random subspaces of half the dimensions and nonzero means."""
    embeddings = {}
    for k, (name, shape) in enumerate(WIDTHS.items()):
        d = torch.Size(shape).numel()
        embeddings[name] = LinearEmbedding(
            torch.linalg.qr(normal(30 + k, d, d // 2))[0], 0.5 * uniform(40 + k, *shape)
        )
    return embeddings


def auto_encoders():
    """Return untrained auto-encoder embeddings."""
    nets = {
        name: build_module(lambda shape=shape: auto_encoder(shape), k)
        for k, (name, shape) in enumerate(WIDTHS.items())
    }
    return {name: AutoEncoderEmbedding(net, WIDTHS[name]) for name, net in nets.items()}


def body(seed=3):
    """Build an untrained ODE for SODEF."""

    def build():
        embed = nn.Sequential(nn.Linear(12, 8), nn.Tanh())
        return StableODE(embed, SineField(8, (16, 16)), nn.Linear(8, CLASSES))

    return build_module(build, seed)


def sodef(**options):
    return SODEF(network(), body(), **{"time": 2.0, **options})


def closed_loop(embeddings=None, **options):
    return ClosedLoopControl(network(), LAYERS, embeddings=embeddings or subspaces(), **options)


def reversal(**options):
    head = build_module(lambda: contrastive_head(12), 5)
    return ContrastiveReversal(network(), head, **{"steps": 2, **options})


def atld(**options):
    return ATLD(
        network(),
        build_module(lambda: LogitDiscriminator(CLASSES, depth=10, widen=1), 6),
        **options,
    )


# Small defenses by name; each entry builds a new one.
DEFENSES = {
    "sodef": lambda: sodef(),
    "sodef, per example": lambda: sodef(integrator=Dopri5(per_example=True)),
    "sodef, equal steps": lambda: sodef(integrator=RungeKutta(6), segments=2),
    "closed loop": lambda: closed_loop(),
    "closed loop, per example": lambda: closed_loop(per_example=True),
    "closed loop, auto-encoders": lambda: closed_loop(auto_encoders()),
    "closed loop, auto-encoders, per example": lambda: closed_loop(
        auto_encoders(), per_example=True
    ),
    "reversal": lambda: reversal(),
    "reversal, shared augmentation": lambda: reversal(negatives=images(6, 70), views=2),
    "reversal, batch negatives": lambda: reversal(shared_augmentation=False, views=2),
    "reversal, per example": lambda: reversal(
        negatives=images(6, 70), shared_augmentation=False, random_start=False, views=2
    ),
    "atld": lambda: atld(),
    "atld, three steps": lambda: atld(steps=3, step_size=4 / 255),
}
SITES = {"sodef": "ode", "closed loop": "control", "reversal": "reverse", "atld": "imt"}


def site(name):
    """Return the site of the defense with this name."""
    return SITES[name.split(",")[0]]


def context(n, seed=0, rules=(), keep=None):
    return Context(Keys.of(seed, torch.arange(n)), dict(rules), keep)


def respond(defense, x, seed=0, **rules):
    """Return the final output [N, C] of a defense under gradient rules per site."""
    return defense.respond(x, context(len(x), seed, rules))


class Recording(Rule):
    """Rule that runs a site unchanged and records its outputs."""

    def __init__(self):
        self.states = []

    def apply(self, fn, x):
        self.states.append(fn(x))
        return self.states[-1]
