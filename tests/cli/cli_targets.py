"""Targets that the command line is pointed at."""

from __future__ import annotations

import torch
from torch import nn

import saddlepoint as sp


class Linear(nn.Module):
    """The class means of nothing in particular: a fixed linear classifier of 8x8 images."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("w", torch.randn(10, 64, generator=torch.Generator().manual_seed(0)))

    def forward(self, x):
        return x.flatten(1) @ self.w.T


class Rounding(sp.Defense):
    def __init__(self) -> None:
        self.static = Linear().eval()

    def trace(self, x, ctx):
        rounded = ctx.through("round", lambda v: (v * 8).round() / 8, x)
        return sp.Trace((sp.View("rounded", self.static(rounded)),))


def make():
    return Linear().eval()


instance = Linear().eval()
number = 3


def defense():
    return Rounding()


def scores():
    return lambda x: Linear()(x)


def training():
    return Linear().train()


def needs_arguments(x, y):
    return x


def raises():
    return {}["weights"]


def nothing():
    return None


def wrong_shape():
    return nn.Sequential(nn.Flatten(), nn.Linear(99, 10)).eval()
