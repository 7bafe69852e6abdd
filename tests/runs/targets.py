"""Targets that worker processes can load by name."""

from __future__ import annotations

import sys
from multiprocessing import parent_process

import torch
from torch import nn

import saddlepoint as sp
from saddlepoint import load_data


class Linear(nn.Module):
    """A fixed linear classifier of 8x8 images."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 10)
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            self.layer.weight.copy_(torch.randn(10, 64, generator=generator))
            self.layer.bias.zero_()

    def forward(self, x):
        return self.layer(x.flatten(1))


def normalized():
    """A linear classifier with batch normalization, which attacks run on in another form."""
    norm = nn.BatchNorm1d(10)
    nn.init.uniform_(norm.running_var, 0.5, 2, generator=torch.Generator().manual_seed(1))
    return nn.Sequential(nn.Flatten(), Linear().layer, norm).eval()


def linear():
    if parent_process() is not None:
        sys.stdout.write("a worker loads the target\n")
    return Linear().eval()


class Means(nn.Module):
    """Classifies by the nearest class mean; accurate, and robust to small perturbations."""

    def __init__(self) -> None:
        super().__init__()
        x, y = load_data("digits", split="train")
        means = [x[y == label].mean(0).flatten() for label in range(10)]
        self.register_buffer("means", torch.stack(means))  # [10, 64]

    def forward(self, x):
        return 4 * (x.flatten(1) @ self.means.T - (self.means * self.means).sum(1) / 2)


def means():
    return Means().eval()


class Contrast(sp.Defense):
    """Increases the contrast before it classifies by the nearest class mean."""

    def __init__(self) -> None:
        self.net = Means().eval()
        self.static = self.net

    def trace(self, x, ctx):
        x = ctx.through("contrast", lambda v: 1.2 * v - 0.1, x)
        return sp.Trace((sp.View("final", self.net(x)),))


def contrast():
    return Contrast()


class Rippled(Linear):
    """The same logits plus a ripple of one percent with steep slopes.

    A standard audit finds that gradients disagree.
    """

    def forward(self, x):
        ripple = (1e-4 * (1e5 * x).sin()).flatten(1).sum(1, keepdim=True)
        return super().forward(x) + ripple * torch.arange(10)


def rippled():
    return Rippled().eval()


def broken():
    raise RuntimeError("no such checkpoint")


def hungry():
    """A net that runs out of memory with more than 16 images."""

    class Hungry(Linear):
        def forward(self, x):
            if len(x) > 16:
                raise MemoryError
            return super().forward(x)

    return Hungry().eval()


def flipped():
    """Another model of the same shape."""
    net = Linear().eval()
    with torch.no_grad():
        net.layer.weight.mul_(-1)
    return net


class Halves(nn.Module):
    """Three exits that classify by class means: of the upper half, the lower half, all pixels."""

    def __init__(self) -> None:
        super().__init__()
        x, y = load_data("digits", split="train")
        means = torch.stack([x[y == label].mean(0).flatten() for label in range(10)])
        rows = torch.arange(64) // 8
        self.register_buffer(
            "means", torch.stack([means * part for part in (rows < 4, rows >= 4, rows >= 0)])
        )  # [3, 10, 64]

    def forward(self, x):
        return [4 * (x.flatten(1) @ m.T - (m * m).sum(1) / 2) for m in self.means]


def halves():
    return Halves().eval()
