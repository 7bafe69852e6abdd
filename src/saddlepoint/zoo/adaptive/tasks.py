"""Auxiliary tasks without labels, by whose loss SOAP purifies."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol, Self, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from saddlepoint.attacks.losses import cross_entropy
from saddlepoint.rng import Keys
from saddlepoint.zoo.adaptive.features import features, looked, probed
from saddlepoint.zoo.adaptive.learning import seeded
from saddlepoint.zoo.multi_exit.attach import linear_head

_NOISE = 1
_FLIP = 2
_HEIGHT = 3
_WIDTH = 4  # each use of randomness tosses its own coins


class Practice(NamedTuple):
    """One look at a batch while learning."""

    loss: Tensor  # [N] of the task
    logits: Tensor  # [V, N, C] of the net on the V altered copies that the task looked at


class Task(Protocol):
    """A loss that needs no label."""

    def loss(self, net: nn.Module, x: Tensor) -> Tensor:
        """[N] what is made small at test time."""

    def practice(self, net: nn.Module, x: Tensor, keys: Keys) -> Practice:
        """The same while net and task learn together, on altered copies of x."""


@dataclass(frozen=True)
class LabelConsistency:
    """mean_k (f(x)_k - f(a(x))_k)^2, a(x) being x mirrored, cropped by `border` on each side and stretched back.

    Croce et al. 2022, Eq. 4, with the identity for a_1; the square and the fixed a_2 are those of the code that was evaluated,
    which crops 2 of 32 pixels (the original one 4 of 32). While learning, a_1 and a_2 are random: noise of 0.1, cut off below zero
    as in the released code, a mirror and a crop of at least three quarters, each drawn per example where that code draws per batch.
    """

    border: float = 1 / 16  # share of the height and width, at least one pixel

    def loss(self, net: nn.Module, x: Tensor) -> Tensor:
        return _disagreement(net(x), net(self.altered(x)))

    def altered(self, x: Tensor) -> Tensor:
        height, width = x.shape[-2:]
        down = max(round(self.border * height), 1)
        right = max(round(self.border * width), 1)
        inside = x.flip(-1)[..., down : height - down, right : width - right]
        return functional.interpolate(inside, (height, width))

    def practice(self, net: nn.Module, x: Tensor, keys: Keys) -> Practice:
        one, other = (net(_random_view(x, keys.fold_in(k))) for k in range(2))
        return Practice(_disagreement(one, other), torch.stack([one, other]))


@dataclass(frozen=True)
class Headed(ABC):
    """A task with a network of its own on a layer of the net."""

    layer: str
    head: nn.Module
    noise: float  # while learning, on what the net sees; in units of the input

    @abstractmethod
    def copies(self, x: Tensor) -> Tensor:
        """[V N, ...]: what the net looks at."""

    @abstractmethod
    def judged(self, given: Tensor, x: Tensor) -> Tensor:
        """[N] the loss, by what the layer gives to the copies of x."""

    def loss(self, net: nn.Module, x: Tensor) -> Tensor:
        (given,) = features(net, [self.layer], self.copies(x))
        return self.judged(given, x)

    def practice(self, net: nn.Module, x: Tensor, keys: Keys) -> Practice:
        logits, given = looked(net, self.layer, self._noisy(x, keys))
        return Practice(self.judged(given, x), logits.view(-1, len(x), logits.shape[1]))

    def practice_alone(self, net: nn.Module, x: Tensor, keys: Keys) -> Tensor:
        """[N] the loss while the head learns and the net stays as it is."""
        with torch.no_grad():
            (given,) = features(net, [self.layer], self._noisy(x, keys))
        return self.judged(given, x)

    def beginning(self) -> Self:
        """The task with a copy of its head, in training mode."""
        return replace(self, head=copy.deepcopy(self.head).train())

    def _noisy(self, x: Tensor, keys: Keys) -> Tensor:
        seen = self.copies(x)
        rows = [
            keys.fold_in(_NOISE).fold_in(k).normal(tuple(x.shape[1:]), x.dtype)
            for k in range(len(seen) // len(x))
        ]
        return (seen + self.noise * torch.cat(rows)).clamp(0, 1)


@dataclass(frozen=True)
class Rotation(Headed):
    """mean_k CE(head(features(x turned by k quarters)), k), k = 0..3 (Shi et al. 2020). The head gives [N, 4]."""

    noise: float = 0.1

    @classmethod
    def on(cls, net: nn.Module, layer: str, example: Tensor, *, seed: int = 0) -> Rotation:
        """With a new head: the mean of what the layer gives, and one linear layer."""
        (given,) = probed(net, [layer], example)
        with seeded(seed):
            return cls(layer, linear_head(layer, given, 4).eval())

    def copies(self, x: Tensor) -> Tensor:
        if x.ndim != 4 or x.shape[2] != x.shape[3]:
            raise ValueError(
                f"quarter turns need square pictures [N, C, H, H], got {list(x.shape)}. Use another task."
            )
        return torch.cat([x.rot90(k, (2, 3)) for k in range(4)])

    def judged(self, given: Tensor, x: Tensor) -> Tensor:
        quarter = torch.arange(4, device=x.device).repeat_interleave(len(x))
        return cross_entropy(self.head(given), quarter).view(4, len(x)).mean(0)


@dataclass(frozen=True)
class Reconstruction(Headed):
    """mean_i (decoder(features(x))_i - x_i)^2 (Shi et al. 2020). While learning, the net sees x with noise, and x is wanted."""

    noise: float = 0.5

    @classmethod
    def on(
        cls, net: nn.Module, layer: str, example: Tensor, *, width: int = 256, seed: int = 0
    ) -> Reconstruction:
        """With a new decoder of two linear layers with `width` units between them, into [0, 1]."""
        (given,) = probed(net, [layer], example)
        size = given[0].numel()
        shape = tuple(example.shape[1:])
        with seeded(seed):
            layers = [
                nn.Flatten(),
                nn.Linear(size, width),
                nn.ReLU(),
                nn.Linear(width, math.prod(shape)),
                nn.Sigmoid(),
            ]
        return cls(layer, nn.Sequential(*layers, nn.Unflatten(1, shape)).to(given).eval())

    def copies(self, x: Tensor) -> Tensor:
        return x

    def judged(self, given: Tensor, x: Tensor) -> Tensor:
        return cast(Tensor, (self.head(given) - x).square().flatten(1).mean(1))


def _disagreement(a: Tensor, b: Tensor) -> Tensor:
    return (a - b).square().mean(1)


def _random_view(x: Tensor, keys: Keys) -> Tensor:
    """Noise, a mirror and a crop, drawn per example; what is stretched back reads the nearest pixels of the crop."""
    n, _, height, width = x.shape
    noise = keys.fold_in(_NOISE).normal(tuple(x.shape[1:]), x.dtype)
    x = x + (0.1 * noise).clamp(0, 1)
    mirrored = keys.fold_in(_FLIP).uniform(()) > 0.5
    x = torch.where(mirrored.view(n, 1, 1, 1), x.flip(3), x)
    rows = _crop(height, keys.fold_in(_HEIGHT))  # [N, H]
    columns = _crop(width, keys.fold_in(_WIDTH))  # [N, W]
    example = torch.arange(n, device=x.device)[:, None, None]
    return x[example, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def _crop(size: int, keys: Keys) -> Tensor:
    """[N, size] which pixel each pixel shows after a random crop, of at least three quarters, is stretched back."""
    first = keys.integers(max(size // 4, 1))
    least = size - size // 4
    length = least + keys.fold_in(1).integers((size - first - least).clamp(min=1))
    return first[:, None] + torch.arange(size, device=first.device) * length[:, None] // size
