"""A training recipe: the optimizer, schedule, augmentation and every other choice of a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor, nn

from saddlepoint.attacks.aims import Aim, last_view
from saddlepoint.attacks.losses import cross_entropy
from saddlepoint.attacks.pgd import PGD
from saddlepoint.attacks.spaces import Ball
from saddlepoint.evaluation import Adversary, Direct
from saddlepoint.rng import Keys
from saddlepoint.training.loop import initialized
from saddlepoint.training.method import Method, StatefulMethod

# [N, C, H, W] and random keys [N] -> the same shape. All randomness comes from the keys.
Augment = Callable[[Tensor, Keys], Tensor]


class Optimizer(Protocol):
    """The settings of an optimizer."""

    @property
    def rate(self) -> float:
        """The learning rate before the schedule is applied."""
        ...

    def over(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """Return a new optimizer of these parameters."""
        ...


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent with momentum."""

    rate: float = 0.1  # learning rate
    momentum: float = 0.9
    weight_decay: float = 5e-4

    def over(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """Return a new optimizer of these parameters."""
        return torch.optim.SGD(
            parameters, self.rate, momentum=self.momentum, weight_decay=self.weight_decay
        )


@dataclass(frozen=True)
class Nesterov:
    """Stochastic gradient descent with Nesterov momentum."""

    rate: float = 0.1  # learning rate
    momentum: float = 0.9
    weight_decay: float = 5e-4

    def over(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """Return a new optimizer of these parameters."""
        return torch.optim.SGD(
            parameters,
            self.rate,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            nesterov=True,
        )


@dataclass(frozen=True)
class Adam:
    """The settings of `torch.optim.Adam` (Kingma & Ba 2015)."""

    rate: float = 1e-3  # learning rate
    weight_decay: float = 0.0

    def over(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """Return a new optimizer of these parameters."""
        return torch.optim.Adam(parameters, self.rate, weight_decay=self.weight_decay)


class Schedule(Protocol):
    """A learning rate schedule."""

    def factor(self, done: float) -> float:
        """Return the factor of the learning rate after a share 0 <= done < 1 of all steps."""
        ...


@dataclass(frozen=True)
class Cosine:
    """(1 + cos(pi done)) / 2, after a linear warm-up over the first share `warmup` of the steps."""

    warmup: float = 0.0  # share of all steps

    def factor(self, done: float) -> float:
        """Return the factor of the learning rate after a share `done` of all steps."""
        if done < self.warmup:
            return done / self.warmup
        return (1 + math.cos(math.pi * (done - self.warmup) / (1 - self.warmup))) / 2


@dataclass(frozen=True)
class Piecewise:
    """Piecewise constant: multiplied by `drop` at each of the shares `at`; `at=()` is constant."""

    at: tuple[float, ...] = (0.5, 0.75)  # shares of all steps
    drop: float = 0.1

    def factor(self, done: float) -> float:
        """Return the factor of the learning rate after a share `done` of all steps."""
        return self.drop ** sum(done >= share for share in self.at)


def scheduled_rate(optimizer: Optimizer, schedule: Schedule) -> Callable[[float], float]:
    """Return the learning rate as a function of the share of all steps that is done."""
    return lambda done: optimizer.rate * schedule.factor(done)


def unchanged(x: Tensor, keys: Keys) -> Tensor:  # noqa: ARG001
    """Return x: no augmentation."""
    return x


@dataclass(frozen=True)
class Shift:
    """Shift each image by up to `pixels` in both directions and optionally mirror half of them.

    The uncovered border is filled with zeros.
    """

    pixels: int = 4
    mirror: bool = False  # flip left and right with probability 1/2

    def __call__(self, x: Tensor, keys: Keys) -> Tensor:
        """Return the augmented images [N, C, H, W]."""
        n, _, height, width = x.shape
        padded = nn.functional.pad(x, [self.pixels] * 4)
        down, right = keys.integers(2 * self.pixels + 1, (2,)).unbind(1)  # [N] each
        rows = down[:, None] + torch.arange(height, device=x.device)  # [N, H]
        columns = right[:, None] + torch.arange(width, device=x.device)  # [N, W]
        if self.mirror:
            columns = torch.where(keys.fold_in(1).signs((1,)) > 0, columns, columns.flip(1))
        example = torch.arange(n, device=x.device)[:, None, None]
        return padded[example, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def judge(aim: Aim = last_view) -> Direct:
    """Return PGD-10 on the cross-entropy, the default attack for choosing the best epoch.

    Args:
        aim: Which views are attacked. A network with several exits answers with the mean of their
            logits, so all exits should be attacked: `judge(mean_of_losses)`.
    """
    return Direct("pgd-10", PGD(steps=10), loss=cross_entropy, aim=aim)


@dataclass(frozen=True)
class Recipe:
    """How a network is trained and how its best epoch is chosen.

    Attributes:
        name: The name of the recipe.
        data: The name of the data set for `load_data`.
        net: Builds the network.
        method: The training loss.
        space: The perturbation set of the training attack and of `select`.
        epochs: Number of epochs.
        n: Number of training examples, taken from the start of the set. None: all.
        measured_on: Number of test examples on which the trained network is measured. None: all.
        batch_size: The largest batch; batches of an epoch differ in size by at most one.
        optimizer: The settings of the optimizer.
        schedule: The learning rate schedule.
        augment: The augmentation of training images.
        select: The attack on the dev set that chooses the epoch: the one with the highest accuracy
            is kept.
        dev_share: Share of the training set that is used as the dev set.
        patience: Training stops after this many epochs without improvement.

    Raises:
        ValueError: A number is out of its range.
    """

    name: str
    data: str
    net: Callable[[], nn.Module]
    method: Method | StatefulMethod
    space: Ball
    epochs: int
    n: int | None = None
    measured_on: int | None = None
    batch_size: int = 128
    optimizer: Optimizer = field(default_factory=SGD)
    schedule: Schedule = field(default_factory=Cosine)
    augment: Augment = unchanged
    select: Adversary = field(default_factory=judge)
    dev_share: float = 0.1
    patience: int = 1000

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "patience"):
            if getattr(self, name) < 1:
                raise ValueError(
                    f"recipe {self.name}: {name} must be at least 1, got {getattr(self, name)}."
                )
        for name, count in (("n", self.n), ("measured_on", self.measured_on)):
            if count is not None and count < 2:
                raise ValueError(
                    f"recipe {self.name}: {name} must be at least 2 or None, got {count}."
                )
        if not 0 < self.dev_share < 1:
            raise ValueError(
                f"recipe {self.name}: dev_share must lie between 0 and 1, got {self.dev_share}. "
                "The best epoch is chosen on a part of the training set, never on the test set."
            )


def initial(recipe: Recipe, seed: int) -> nn.Module:
    """Return the recipe's network with its initial weights, a function of the seed."""
    return initialized(recipe.net, seed)
