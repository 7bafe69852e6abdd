"""Learning of the auxiliary networks that defences optimise against at test time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from saddlepoint.coins import Coins

_ORDER, _BATCH = 1, 2  # each use of randomness tosses its own coins


def learn(
    optimizer: torch.optim.Optimizer,
    losses: Callable[[Tensor, Coins], Tensor],
    count: int,
    *,
    epochs: int,
    batch_size: int,
    seed: int,
) -> float:
    """Steps of the optimizer on mean_i losses_i over `count` examples, `epochs` times; gives the mean loss of the last epoch.

    `losses(rows, coins)` gives the losses [B] of these rows; coins belong to the row and the epoch. Batches are of nearly equal
    size.
    """
    if min(count, epochs, batch_size) < 1:
        raise ValueError(f"there must be something to learn: got {count} examples, epochs={epochs} and batch_size={batch_size}.")
    total = 0.0
    with seeded(seed):
        for epoch in range(epochs):
            coins = Coins.of(seed, torch.arange(count)).fold(epoch)
            order = coins.fold(_ORDER).uniform((), torch.float64).argsort(stable=True)
            total = 0.0
            for rows in torch.tensor_split(order, math.ceil(count / batch_size)):
                value = losses(rows, coins[rows].fold(_BATCH))
                if not value.isfinite().all():
                    raise FloatingPointError(f"the loss is not a finite number in epoch {epoch + 1}. Lower the learning rate.")
                optimizer.zero_grad()
                value.mean().backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                total += float(value.detach().double().sum())
    return total / count


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Initial weights and dropout draw from torch's global generator: seeded here, and given back as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
