"""Defenses around a linear net, with known checklist items and symptoms."""

from __future__ import annotations

import torch
from torch import nn

import saddlepoint as sp
from saddlepoint.audits import AuditRequest, collect, prepare
from saddlepoint.audits.pipeline import InProcess
from saddlepoint.evaluation import Threat

RADIUS = 0.01


class Linear(nn.Module):
    """Two classes separated by w . (x - 1/2): the worst case moves the score by radius ||w||_1."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.w = nn.Parameter(torch.randn(16, generator=generator, dtype=torch.float64))

    def forward(self, x):
        score = (x - 0.5) @ self.w
        return torch.stack([score, -score], 1)


NET = Linear().eval()
GRID = 0.1  # clean pixels are multiples of it, so that a defense can find the clean image
LEVELS = torch.randint(0, 5, (80, 16), generator=torch.Generator().manual_seed(1))
X = (3 + LEVELS).double() * GRID
Y = NET(X).argmax(1)
THREAT = sp.Linf(RADIUS)


def clean_image(x):
    return (x / GRID).round() * GRID


class Purified(sp.Defense):
    """net(purify(x)), with further calls of the net that change nothing."""

    static = NET

    def __init__(self, purify=lambda x: x, calls=1):
        self.purify = purify
        self.calls = calls

    def trace(self, x, ctx):
        pure = ctx.through("purify", self.purify, x)
        for _ in range(self.calls - 1):
            NET(pure)
        return sp.Trace((sp.View("final", NET(pure)),))


class NoisyGradient(Purified):
    """Noise of a given size in the gradient, none in the outputs."""

    random = True

    def __init__(self, noise):
        super().__init__()
        self.noise = noise

    def trace(self, x, ctx):
        slope = self.noise * ctx.randn_like(x)
        zero = (slope * (x - x.detach())).sum(1, keepdim=True)
        return sp.Trace((sp.View("final", NET(x) + torch.cat([zero, -zero], 1)),))


class Coupled(Purified):
    """Declares that rows influence each other."""

    coupled = True


IDENTITY = Purified()
REVERSED = Purified(lambda x: 2 * x.detach() - x)  # the value of x with the opposite gradient
ROUNDED = Purified(lambda x: (x * 512).round() / 512)  # close to x, with zero gradients
WEAKER = Purified(lambda x: clean_image(x.detach()) + 4 * (x - clean_image(x.detach())))
CLEANED = Purified(clean_image)  # removes every perturbation below half the grid

APGD = sp.Direct("apgd", sp.APGD(20))
SQUARE = sp.Direct("square", sp.Square(200))
EOT = sp.Direct("eot", sp.APGD(10), estimator=sp.EoT(4))
BPDA = sp.Direct("bpda", sp.APGD(20), rules={"purify": sp.BPDA()})
WRONG_BPDA = sp.Direct("wrong bpda", sp.APGD(20), rules={"purify": sp.BPDA(lambda x: -x)})
TRANSFER = sp.Transfer(APGD, sp.Plain(NET))
SHORT = sp.Direct("short", sp.PGD(3, step_size=0.0015, random_start=False))


def plan_for(target, adversaries=(), threat=THREAT, x=X, y=Y, **settings):
    """The plan of an audit with these adversaries, or with composed ones if there are none."""
    threat = threat if isinstance(threat, Threat) else Threat(threat)
    return prepare(AuditRequest(target, x, y, threat, adversaries=tuple(adversaries), **settings))


def collect_evidence(target, adversaries, threat=THREAT, y=Y):
    """The evidence of an audit with these adversaries."""
    return collect(plan_for(target, adversaries, threat, y=y), InProcess())
