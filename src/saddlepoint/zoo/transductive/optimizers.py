"""Optimizers as values: parameters, gradients and moments in, new ones out, so that a defense that learns stays as it was."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


class Moments(NamedTuple):
    """What an optimizer remembers, for each parameter."""

    steps: int
    first: tuple[Tensor, ...]
    second: tuple[Tensor, ...]
    rate: tuple[Tensor, ...]  # running mean of step sizes; zeros where nothing bounds them


class Learned(NamedTuple):
    """Parameters after a step."""

    parameters: tuple[Tensor, ...]
    moments: Moments


@dataclass(frozen=True)
class Adam:
    """m <- b1 m + (1 - b1) g,  v <- b2 v + (1 - b2) g^2,  p <- p - lr m^ / (sqrt(v^) + eps), with m^, v^ freed of their bias.

    Kingma & Ba 2015, Algorithm 1. Every step can be differentiated through.
    """

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    def start(self, parameters: Sequence[Tensor]) -> Moments:
        zeros = tuple(torch.zeros_like(p) for p in parameters)
        return Moments(0, zeros, zeros, zeros)

    def step(
        self, parameters: Sequence[Tensor], grads: Sequence[Tensor], moments: Moments
    ) -> Learned:
        t = moments.steps + 1
        (b1, b2) = self.betas
        first = tuple(b1 * m + (1 - b1) * g for m, g in zip(moments.first, grads, strict=True))
        second = tuple(
            b2 * v + (1 - b2) * g * g for v, g in zip(moments.second, grads, strict=True)
        )
        wanted = [self._rate(v, t) for v in second]
        taken, rate = zip(
            *(self._bounded(r, s) for r, s in zip(wanted, moments.rate, strict=True)), strict=True
        )
        new = tuple(p - r * m for p, r, m in zip(parameters, taken, first, strict=True))
        return Learned(new, Moments(t, first, second, rate))

    def _rate(self, second: Tensor, t: int) -> Tensor:
        b1, b2 = self.betas
        return self.lr / (1 - b1**t) / (_root(second) / math.sqrt(1 - b2**t) + self.eps)

    def _bounded(self, rate: Tensor, mean: Tensor) -> tuple[Tensor, Tensor]:
        """The step size that is taken, and the running mean of step sizes."""
        return rate, mean


@dataclass(frozen=True)
class AdaMod(Adam):
    """Adam whose step sizes may not exceed their running mean.

    r = lr sqrt(1 - b2^t) / (1 - b1^t) / (sqrt(v) + eps),  s <- b3 s + (1 - b3) r from s = 0,  p <- p - min(r, s) m.
    Ding et al. 2019. As s starts at 0, the first step is 1 - b3 of Adam's. The defaults are DENT's.
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
    """sqrt(v), whose derivative at 0 is 0 instead of infinity: a parameter without gradient must not spoil those that have one."""
    return torch.where(v > 0, torch.where(v > 0, v, 1.0).sqrt(), 0.0)
