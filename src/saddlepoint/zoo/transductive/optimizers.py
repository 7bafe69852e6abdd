"""Differentiable optimizers as pure functions: new parameters and moments are returned.

A defense that adapts with them is not changed, and gradients flow through every step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


class Moments(NamedTuple):
    """The running averages of an optimizer, one tensor per parameter."""

    steps: int  # taken so far
    first: tuple[Tensor, ...]  # of gradients
    second: tuple[Tensor, ...]  # of squared gradients
    rate: tuple[Tensor, ...]  # of step sizes; zeros in an optimizer that does not bound them


class Updated(NamedTuple):
    """Parameters and moments after a step."""

    parameters: tuple[Tensor, ...]
    moments: Moments


@dataclass(frozen=True)
class Adam:
    """m <- b1 m + (1 - b1) g,  v <- b2 v + (1 - b2) g^2,  p <- p - lr m^ / (sqrt(v^) + eps).

    m^ and v^ are the bias-corrected moments. Kingma & Ba 2015, Algorithm 1.
    """

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)  # b1, b2
    eps: float = 1e-8

    def start(self, parameters: Sequence[Tensor]) -> Moments:
        """Return the moments before the first step."""
        zeros = tuple(torch.zeros_like(p) for p in parameters)
        return Moments(0, zeros, zeros, zeros)

    def step(
        self, parameters: Sequence[Tensor], grads: Sequence[Tensor], moments: Moments
    ) -> Updated:
        """Take one step.

        Args:
            parameters: The parameters.
            grads: Their gradients, of the same shapes.
            moments: The moments after the previous step.
        """
        t = moments.steps + 1
        (b1, b2) = self.betas
        first = tuple(b1 * m + (1 - b1) * g for m, g in zip(moments.first, grads, strict=True))
        second = tuple(
            b2 * v + (1 - b2) * g * g for v, g in zip(moments.second, grads, strict=True)
        )
        rates = [self._rate(v, t) for v in second]
        bounded, mean_rates = zip(
            *(self._bounded(r, s) for r, s in zip(rates, moments.rate, strict=True)), strict=True
        )
        new = tuple(p - r * m for p, r, m in zip(parameters, bounded, first, strict=True))
        return Updated(new, Moments(t, first, second, mean_rates))

    def _rate(self, second: Tensor, t: int) -> Tensor:
        b1, b2 = self.betas
        return self.lr / (1 - b1**t) / (_root(second) / math.sqrt(1 - b2**t) + self.eps)

    def _bounded(self, rate: Tensor, mean: Tensor) -> tuple[Tensor, Tensor]:
        """Return the step size to use and the new running average of step sizes."""
        return rate, mean


@dataclass(frozen=True)
class AdaMod(Adam):
    """Adam with step sizes bounded by their running average (Ding et al. 2019).

    r = lr sqrt(1 - b2^t) / (1 - b1^t) / (sqrt(v) + eps),  s <- b3 s + (1 - b3) r from s = 0,
    p <- p - min(r, s) m. Because s starts at 0, the first step is 1 - b3 times that of Adam. The
    defaults are DENT's.
    """

    lr: float = 6e-3
    betas: tuple[float, float] = (0.99, 0.999)
    memory: float = 0.6  # b3

    def _rate(self, second: Tensor, t: int) -> Tensor:
        b1, b2 = self.betas
        return self.lr * math.sqrt(1 - b2**t) / (1 - b1**t) / (_root(second) + self.eps)

    def _bounded(self, rate: Tensor, mean: Tensor) -> tuple[Tensor, Tensor]:
        mean = self.memory * mean + (1 - self.memory) * rate
        return torch.minimum(rate, mean), mean


def _root(v: Tensor) -> Tensor:
    """Return sqrt(v) with derivative 0 at 0.

    The true derivative there is infinite, and a parameter without gradient would make the gradient
    of all others NaN.
    """
    return torch.where(v > 0, torch.where(v > 0, v, 1.0).sqrt(), 0.0)
