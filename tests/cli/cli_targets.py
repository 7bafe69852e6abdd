"""Targets that the command line is pointed at."""

from __future__ import annotations

import time

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


class Hungry(Linear):
    """Holds no more than sixteen images at a time."""

    def forward(self, x):
        if len(x) > 16:
            raise MemoryError
        return super().forward(x)


class Slow(Linear):
    """Takes its time, so that there is a moment at which to interrupt it."""

    def forward(self, x):
        time.sleep(0.01)
        return super().forward(x)


class Starving(Linear):
    """Has memory for answers, and for no gradient."""

    def forward(self, x):
        if x.requires_grad:
            raise MemoryError
        return super().forward(x)


def hungry():
    return Hungry().eval()


def slow():
    return Slow().eval()


def starving():
    return Starving().eval()
