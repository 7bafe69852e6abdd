"""The pieces of which training loops are made: a step, a pass, an order of rows, batches, initial weights, hidden randomness."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import TypeVar

import torch
from torch import Tensor, nn

from saddlepoint.attacks.losses import cross_entropy
from saddlepoint.rng import Keys

Net = TypeVar("Net", bound=nn.Module)


def descend(optimizer: torch.optim.Optimizer, *losses: Tensor, during: str) -> float:
    """theta <- theta - rate grad sum_k mean_i loss_ki for per-example losses [N_k]; returns their sum over all k and i.

    A loss that is not a finite number is refused; `during` says where that was.
    """
    if not all(loss.isfinite().all() for loss in losses):
        rate = optimizer.defaults["lr"]
        raise FloatingPointError(
            f"{during}: the loss is not a finite number. Lower the learning rate, now {rate}."
        )
    optimizer.zero_grad()
    torch.stack([loss.mean() for loss in losses]).sum().backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return sum(float(loss.detach().double().sum()) for loss in losses)


def passes(
    net: nn.Module,
    optimizer: torch.optim.Optimizer,
    x: Tensor,
    y: Tensor,
    *,
    batch_size: int,
    seed: int,
    during: str,
) -> Iterator[float]:
    """Descends the cross-entropy over all of x in an order of its own, again and again; gives the mean loss of each pass.

    It is the caller who stops: `islice(passes(...), epochs)`. The network is in train mode during a pass.
    """
    keys = Keys.of(seed, torch.arange(len(x)))
    for k in count(1):
        net.train()
        with torch.enable_grad(), hidden_randomness(keys.fold_in(-k).batch_seed(), x.device):
            parts = [
                rows.to(x.device) for rows in batches(permutation(keys.fold_in(k)), batch_size)
            ]
            total = sum(
                descend(
                    optimizer, cross_entropy(net(x[rows]), y[rows]), during=f"{during}, pass {k}"
                )
                for rows in parts
            )
        yield total / len(x)


def permutation(keys: Keys) -> Tensor:
    """[N] int64 on the CPU: rows sorted by a coin each."""
    return keys.uniform((), torch.float64).argsort(stable=True).cpu()


def batches(order: Tensor, size: int) -> tuple[Tensor, ...]:
    """The rows in at most `size` at a time, of equal size to within one: batch statistics of a single row left over are none."""
    return torch.tensor_split(order, math.ceil(len(order) / size))


def initialized(build: Callable[[], Net], seed: int) -> Net:
    """The network with the weights it starts from, a function of the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build()


@contextmanager
def hidden_randomness(seed: int, device: torch.device) -> Iterator[None]:
    """Dropout and its like draw from torch's global generator: seeded here, and given back as it was."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield
