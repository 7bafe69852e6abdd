"""Training loop shared by the `fit` methods of adaptive defenses.

Minibatches and all random draws are functions of a seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from saddlepoint.rng import Keys


@dataclass(frozen=True)
class Phase:
    """Length and learning rate of a training phase."""

    epochs: int
    batch_size: int  # upper bound
    rate: float  # learning rate
    milestones: tuple[int, ...] = ()  # epochs after which the learning rate is divided by ten

    def __post_init__(self) -> None:
        if self.epochs < 0 or self.batch_size < 1 or self.rate < 0:
            raise ValueError(
                f"a Phase needs epochs >= 0, batch_size >= 1 and rate >= 0, got {self}."
            )

    def rate_at(self, epoch: int) -> float:
        """Return the learning rate of an epoch, counted from 0."""
        return self.rate * 0.1 ** sum(epoch >= milestone for milestone in self.milestones)


class Batch(NamedTuple):
    """One minibatch."""

    epoch: int  # counted from 0
    rows: Tensor  # [B] indices into the data
    keys: Keys  # [B] random keys of these examples in this epoch


def minibatches(count: int, phase: Phase, seed: int, device: torch.device) -> Iterator[Batch]:
    """Yield the minibatches of all epochs of a phase.

    Each epoch visits every example once, in an order drawn from the seed. The batch sizes within
    an epoch differ by at most one.

    Args:
        count: Number of examples.
        phase: Number of epochs and batch size.
        seed: Seed of the order and of the random keys.
        device: Device of the indices and keys.
    """
    for epoch in range(phase.epochs):
        keys = Keys.of(seed, torch.arange(count, device=device)).fold_in(epoch)
        order = keys.uniform((), torch.float64).argsort(stable=True)
        for rows in torch.tensor_split(order, math.ceil(count / phase.batch_size)):
            yield Batch(epoch, rows, keys[rows].fold_in(1))


def minimize(
    loss: Callable[[Batch], Tensor],
    optimizer: torch.optim.Optimizer,
    count: int,
    phase: Phase,
    seed: int,
    device: torch.device,
) -> None:
    """Minimize the mean loss of each minibatch with one optimizer step per minibatch.

    Args:
        loss: Function from a minibatch to per-example losses [B].
        optimizer: Optimizer of the trained parameters; its learning rate is set each epoch.
        count: Number of examples.
        phase: Epochs, batch size and learning rate.
        seed: Seed of the minibatches.
        device: Device of the data.

    Raises:
        FloatingPointError: If a loss is not finite.
    """
    with torch.enable_grad():
        for batch in minibatches(count, phase, seed, device):
            set_learning_rate(optimizer, phase.rate_at(batch.epoch))
            optimizer_step(optimizer, loss(batch).mean(), batch.epoch)


def chunks(x: Tensor, size: int = 256) -> tuple[Tensor, ...]:
    """Split the rows of x in order into chunks of at most `size` rows."""
    return tuple(torch.tensor_split(x, math.ceil(len(x) / size)))


def optimizer_step(optimizer: torch.optim.Optimizer, loss: Tensor, epoch: int) -> None:
    """Backpropagate a scalar loss and update the parameters.

    Args:
        optimizer: Optimizer of the trained parameters.
        loss: Scalar loss.
        epoch: Current epoch, counted from 0, for the error message.

    Raises:
        FloatingPointError: If the loss is not finite.
    """
    if not loss.isfinite():
        rate = optimizer.param_groups[0]["lr"]
        raise FloatingPointError(
            f"the loss is not finite in epoch {epoch + 1}. "
            f"Lower the learning rate, which is now {rate}."
        )
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of all parameter groups."""
    for group in optimizer.param_groups:
        group["lr"] = rate


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch's global CPU generator inside the block and restore its state afterwards.

    New modules draw their initial weights from this generator.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
