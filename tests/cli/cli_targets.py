"""Targets for tests of the command line."""

from __future__ import annotations

import time

import torch
from torch import nn

import saddlepoint as sp
from saddlepoint.defenses import Mix


class Linear(nn.Module):
    """A linear classifier of 8x8 images with fixed random weights."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("w", torch.randn(10, 64, generator=torch.Generator().manual_seed(0)))

    def forward(self, x):
        return x.flatten(1) @ self.w.T


class Rounding(sp.Defense):
    """Quantizes the pixels to multiples of 1/8 before a linear classifier."""

    def __init__(self) -> None:
        self.static = Linear().eval()

    def trace(self, x, ctx):
        rounded = ctx.through("round", lambda v: (v * 8).round() / 8, x)
        return sp.Trace((sp.View("rounded", self.static(rounded)),))


class Halves(nn.Module):
    """A network with exits that compare parts of a digit with the class means.

    In turn, the parts are the upper half, the lower half, and the whole digit.
    """

    def __init__(self, exits: int = 3) -> None:
        super().__init__()
        x, y = sp.load_data("digits", split="train")
        means = torch.stack([x[y == label].mean(0).flatten() for label in range(10)])
        rows = torch.arange(64) // 8
        parts = [rows < 4, rows >= 4, rows >= 0]
        self.register_buffer(
            "means", torch.stack([means * parts[k % 3] for k in range(exits)])
        )  # [L, 10, 64]

    def forward(self, x):
        return [4 * (x.flatten(1) @ m.T - (m * m).sum(1) / 2) for m in self.means]


class SlowHalves(Halves):
    """The same network, slow enough to interrupt."""

    def forward(self, x):
        time.sleep(0.02)
        return super().forward(x)


class Stages(sp.Defense):
    """A defense with two views that have other names than exits."""

    def __init__(self) -> None:
        self.net = Halves()

    def trace(self, x, ctx):
        early, _, late = self.net(x)
        return sp.Trace((sp.View("early", early), sp.View("late", late)))


def exits():
    return Halves().eval()


def five():
    return Halves(5).eval()


def twenty():
    return Halves(20).eval()


def slowly():
    return SlowHalves().eval()


def strategic():
    return sp.NEED(Halves().eval(), Mix(((1,), (2, 3)), (0.5, 0.5)))


def stages():
    return Stages()


def make():
    return Linear().eval()


instance = Linear().eval()
number = 3


def defense():
    return Rounding()


def scores():
    return lambda x: Linear()(x)


def training():
    return nn.Sequential(Linear(), nn.Dropout(0.5)).train()


def needs_arguments(x, y):
    return x


def raises():
    return {}["weights"]


def nothing():
    return None


def wrong_shape():
    return nn.Sequential(nn.Flatten(), nn.Linear(99, 10)).eval()


class Hungry(Linear):
    """Runs out of memory with more than sixteen images."""

    def forward(self, x):
        if len(x) > 16:
            raise MemoryError
        return super().forward(x)


class Slow(Linear):
    """Slow enough to interrupt."""

    def forward(self, x):
        time.sleep(0.01)
        return super().forward(x)


class Starving(Linear):
    """Has enough memory for predictions, but not for gradients."""

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
