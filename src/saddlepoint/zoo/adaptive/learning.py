"""What the `fit` of adaptive defenses share: minibatches by coins, one descent loop, seeded modules."""

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
    """How long and how fast something is learnt."""

    epochs: int
    batch_size: int
    rate: float
    milestones: tuple[int, ...] = ()  # epochs after which the rate is divided by ten

    def __post_init__(self) -> None:
        if self.epochs < 0 or self.batch_size < 1 or self.rate < 0:
            raise ValueError(
                f"a Phase needs epochs >= 0, batch_size >= 1 and rate >= 0, got {self}."
            )

    def rate_in(self, epoch: int) -> float:
        return self.rate * 0.1 ** sum(epoch >= milestone for milestone in self.milestones)


class Batch(NamedTuple):
    """Some rows of the data and the coins they toss in this epoch."""

    epoch: int
    rows: Tensor  # [B]
    keys: Keys  # [B]


def batches(count: int, phase: Phase, seed: int, device: torch.device) -> Iterator[Batch]:
    """Every row once an epoch, in an order drawn by the seed; batches of an epoch are equal to within one."""
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
    """theta <- theta - rate(epoch) grad mean_i loss_i(theta), batch by batch; `loss` gives one number per row."""
    with torch.enable_grad():
        for batch in batches(count, phase, seed, device):
            set_rate(optimizer, phase.rate_in(batch.epoch))
            descend(optimizer, loss(batch).mean(), batch.epoch)


def parts(x: Tensor, size: int = 256) -> tuple[Tensor, ...]:
    """The rows in order, no more than so many at a time."""
    return tuple(torch.tensor_split(x, math.ceil(len(x) / size)))


def descend(optimizer: torch.optim.Optimizer, value: Tensor, epoch: int) -> None:
    if not value.isfinite():
        rate = optimizer.param_groups[0]["lr"]
        raise FloatingPointError(
            f"the loss is not a finite number in epoch {epoch + 1}. Lower the learning rate, now {rate}."
        )
    optimizer.zero_grad()
    value.backward()  # type: ignore[no-untyped-call]
    optimizer.step()


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """New modules draw their weights from torch's global generator: seeded here, and given back as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def refuse_data(x: Tensor, y: Tensor) -> None:
    if (
        not x.is_floating_point()
        or x.ndim < 2
        or y.dtype != torch.int64
        or y.shape != x.shape[:1]
        or not len(x)
    ):
        raise ValueError(
            f"fit needs floating-point x [N, ...] and int64 labels y [N], got x {x.dtype} {list(x.shape)} and "
            f"y {y.dtype} {list(y.shape)}."
        )
