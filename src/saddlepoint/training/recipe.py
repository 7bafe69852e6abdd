"""What a training run is: every choice in one value."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor, nn

from saddlepoint.attacks.aims import Aim, last
from saddlepoint.attacks.losses import cross_entropy
from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import Ball
from saddlepoint.evaluation import Adversary, Direct
from saddlepoint.rng import Keys
from saddlepoint.training.method import Learning, Method

Augment = Callable[
    [Tensor, Keys], Tensor
]  # [N, C, H, W] -> the same shape; randomness only from the coins


class Optimizer(Protocol):
    """How parameters move along the mean loss."""

    @property
    def rate(self) -> float: ...
    def over(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer: ...


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent with momentum."""

    rate: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 5e-4

    def over(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(
            parameters, self.rate, momentum=self.momentum, weight_decay=self.weight_decay
        )


@dataclass(frozen=True)
class Nesterov:
    """The same with the momentum of Nesterov: the step is taken from where the momentum leads."""

    rate: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 5e-4

    def over(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(
            parameters,
            self.rate,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            nesterov=True,
        )


@dataclass(frozen=True)
class Adam:
    """Kingma & Ba 2015."""

    rate: float = 1e-3
    weight_decay: float = 0.0

    def over(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, self.rate, weight_decay=self.weight_decay)


class Schedule(Protocol):
    """The factor of the learning rate when a share `done` of all steps, 0 <= done < 1, is behind."""

    def factor(self, done: float) -> float: ...


@dataclass(frozen=True)
class Cosine:
    """(1 + cos(pi done)) / 2, after a linear rise over the first share `warmup`."""

    warmup: float = 0.0

    def factor(self, done: float) -> float:
        if done < self.warmup:
            return done / self.warmup
        return (1 + math.cos(math.pi * (done - self.warmup) / (1 - self.warmup))) / 2


@dataclass(frozen=True)
class Piecewise:
    """Constant, multiplied by `drop` at each of the shares `at`; constant to the end with `at=()`."""

    at: tuple[float, ...] = (0.5, 0.75)
    drop: float = 0.1

    def factor(self, done: float) -> float:
        return self.drop ** sum(done >= share for share in self.at)


def unchanged(x: Tensor, keys: Keys) -> Tensor:  # noqa: ARG001
    """No augmentation."""
    return x


@dataclass(frozen=True)
class Shift:
    """Each image moved by up to `pixels` in both directions, black coming in; mirrored half of the time where `mirror` says so."""

    pixels: int = 4
    mirror: bool = False

    def __call__(self, x: Tensor, keys: Keys) -> Tensor:
        n, _, height, width = x.shape
        padded = nn.functional.pad(x, [self.pixels] * 4)
        down, right = keys.integers(2 * self.pixels + 1, (2,)).unbind(1)  # [N] each
        rows = down[:, None] + torch.arange(height, device=x.device)  # [N, H]
        columns = right[:, None] + torch.arange(width, device=x.device)  # [N, W]
        if self.mirror:
            columns = torch.where(keys.fold_in(1).signs((1,)) > 0, columns, columns.flip(1))
        example = torch.arange(n, device=x.device)[:, None, None]
        return padded[example, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def judge(aim: Aim = last) -> Direct:
    """PGD-10 on the cross-entropy: what an epoch is judged by unless the recipe says otherwise.

    A network with several exits is judged by the mean of their logits: aim at all of them, `judge(mean_of_losses)`.
    """
    return Direct("pgd-10", PGD(steps=10), loss=cross_entropy, aim=aim)


@dataclass(frozen=True)
class Recipe:
    """How a network is trained and how its best epoch is chosen."""

    name: str
    data: str  # a name for `load_data`
    net: Callable[[], nn.Module]
    method: Method | Learning
    space: Ball  # the perturbation set: of the method's adversaries, and of the judge's
    epochs: int
    n: int | None = None  # training examples taken, the first ones; None: all
    measured_on: int | None = (
        None  # test examples by which the trained network is measured; None: all
    )
    batch_size: int = 128  # at most; batches of an epoch are of equal size to within one
    optimizer: Optimizer = field(default_factory=SGD)
    schedule: Schedule = field(default_factory=Cosine)
    augment: Augment = unchanged
    select: Adversary = field(
        default_factory=judge
    )  # the epoch kept is the one most accurate against it on the dev set
    dev_share: float = 0.1  # of the training set, set aside for that
    patience: int = 1000  # epochs without a better one before training stops

    def __post_init__(self) -> None:
        for name, least in (("epochs", 1), ("batch_size", 1), ("patience", 1)):
            if getattr(self, name) < least:
                raise ValueError(
                    f"recipe {self.name}: {name} must be at least {least}, got {getattr(self, name)}."
                )
        for name, count in (("n", self.n), ("measured_on", self.measured_on)):
            if count is not None and count < 2:
                raise ValueError(
                    f"recipe {self.name}: {name} must be at least 2 or None, got {count}."
                )
        if not 0 < self.dev_share < 1:
            raise ValueError(
                f"recipe {self.name}: dev_share must lie between 0 and 1, got {self.dev_share}. "
                "Some of the training set must be set aside to choose the epoch; the test set is not for that."
            )
