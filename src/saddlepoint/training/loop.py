"""The one training loop: an epoch of optimizer steps, and the pieces around it.

`train_epoch` runs the optimizer steps of every training in the package: `fit`, the training at test
time of transductive defenses, and domain-adversarial training.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import TypeVar

import torch
from torch import Tensor, nn

from saddlepoint.attacks.losses import cross_entropy
from saddlepoint.rng import Keys

Net = TypeVar("Net", bound=nn.Module)
Batch = TypeVar("Batch")


def train_epoch(
    optimizer: torch.optim.Optimizer,
    batches: Sequence[Batch],
    losses: Callable[[Batch, float], tuple[Tensor, ...]],
    *,
    epoch: int,
    epochs: float,
    seed: int,
    device: torch.device,
    name: str,
    learning_rate: Callable[[float], float] | None = None,
) -> float:
    """Take one optimizer step per batch.

    Args:
        optimizer: Updates the parameters.
        batches: What the steps of the epoch train on, in order.
        losses: Maps a batch and the share 0 <= done < 1 of the whole training that is done to
            per-example losses [N_k]. A step descends the sum over k of their means.
        epoch: The number of the epoch, from 1.
        epochs: The number of epochs of the whole training; infinite if it is not known, which makes
            the share that is done 0.
        seed: Seed of torch's global generator during the epoch. Dropout draws from it. The state of
            the generator is restored afterwards.
        device: The device of the network.
        name: What is trained; part of the error message.
        learning_rate: Maps the share of the training that is done to the learning rate of the step.
            Without it the optimizer keeps its rate.

    Returns:
        The sum of all per-example losses of the epoch.

    Raises:
        FloatingPointError: A loss is not finite.
    """
    total = 0.0
    with torch.enable_grad(), seeded_generator(seed, device):
        for k, batch in enumerate(batches):
            done = (epoch - 1 + k / len(batches)) / epochs
            if learning_rate is not None:
                set_learning_rate(optimizer, learning_rate(done))
            step = f"{name}, epoch {epoch}, batch {k + 1}"
            total += descend(optimizer, *losses(batch, done), during=step)
    return total


def cross_entropy_epochs(
    net: nn.Module,
    optimizer: torch.optim.Optimizer,
    x: Tensor,
    y: Tensor,
    *,
    batch_size: int,
    seed: int,
    name: str,
) -> Iterator[float]:
    """Train on the cross-entropy, epoch after epoch without end, and yield the mean loss of each.

    The caller decides when to stop, for example with `islice(cross_entropy_epochs(...), epochs)`.
    The network is in train mode during an epoch. Every epoch has its own order of the examples.

    Args:
        net: The network, [N, ...] -> [N, C].
        optimizer: Updates the parameters of `net`.
        x: Training examples [N, ...].
        y: Labels [N].
        batch_size: The largest batch; batches of an epoch differ in size by at most one.
        seed: Decides the order of the examples and the randomness of dropout.
        name: What is trained; part of the error message.

    Yields:
        The mean loss of an epoch over all examples, each measured before its own step.

    Raises:
        FloatingPointError: A loss is not finite.
    """
    keys = Keys.of(seed, torch.arange(len(x)))

    def losses(rows: Tensor, done: float) -> tuple[Tensor]:  # noqa: ARG001
        return (cross_entropy(net(x[rows]), y[rows]),)

    for epoch in count(1):
        net.train()
        order = permutation(keys.fold_in(epoch))
        total = train_epoch(
            optimizer,
            [rows.to(x.device) for rows in split_batches(order, batch_size)],
            losses,
            epoch=epoch,
            epochs=math.inf,
            seed=keys.fold_in(-epoch).batch_seed(),
            device=x.device,
            name=name,
        )
        yield total / len(x)


def descend(optimizer: torch.optim.Optimizer, *losses: Tensor, during: str) -> float:
    """Take one step: theta <- theta - rate grad sum_k mean_i loss_ki.

    Args:
        optimizer: Updates theta.
        losses: Per-example losses [N_k].
        during: Where training is; part of the error message.

    Returns:
        The sum of the losses over all k and i.

    Raises:
        FloatingPointError: A loss is not finite.
    """
    if not all(loss.isfinite().all() for loss in losses):
        rate = optimizer.defaults["lr"]
        raise FloatingPointError(
            f"{during}: the loss is not finite. Lower the learning rate, now {rate}."
        )
    optimizer.zero_grad()
    torch.stack([loss.mean() for loss in losses]).sum().backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return sum(float(loss.detach().double().sum()) for loss in losses)


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of all parameters."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def permutation(keys: Keys) -> Tensor:
    """Return a random permutation of the rows, [N] int64 on the CPU: rows sorted by a draw each."""
    return keys.uniform((), torch.float64).argsort(stable=True).cpu()


def split_batches(order: Tensor, size: int) -> tuple[Tensor, ...]:
    """Split rows into batches of at most `size`; their sizes differ by at most one.

    Equal sizes avoid a last batch of a single row, which has no batch statistics.
    """
    return torch.tensor_split(order, math.ceil(len(order) / size))


def initialized(build: Callable[[], Net], seed: int) -> Net:
    """Build a network with initial weights that depend on the seed only.

    Args:
        build: Returns a new network; its weights come from torch's global generator.
        seed: Seed of that generator while the network is built. Its state is restored afterwards.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build()


@contextmanager
def seeded_generator(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's global generator inside the block and restore its state afterwards.

    Dropout and similar layers draw from the global generator.
    """
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread inside the block, so that weights do not depend on the core count.

    Sums that are split over several threads round differently.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
