"""A few digits, networks that train on them in a second, and a fingerprint of a defense."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache

import torch
from torch import Tensor, nn

from saddlepoint.data import Data, load_data
from saddlepoint.defenses import Context, Defense
from saddlepoint.rng import Keys
from saddlepoint.training.loop import cross_entropy_epochs, initialized
from saddlepoint.training.recipe import Adam


@cache
def digits(split: str = "train", n: int = 400) -> Data:
    return load_data("digits", split=split, n=n)


def small() -> nn.Sequential:
    """A network with batch norm and 24 units in the penultimate layer."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(64, 32),
        nn.BatchNorm1d(32),
        nn.ReLU(),
        nn.Linear(32, 24),
        nn.ReLU(),
        nn.Linear(24, 10),
    )


def two_classes() -> nn.Sequential:
    """An untrained discriminator."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 2))


@cache
def trained(seed: int = 0, epochs: int = 15) -> nn.Module:
    """A network that classifies most digits correctly."""
    net = initialized(small, seed)
    data = digits()
    losses = cross_entropy_epochs(
        net,
        Adam(3e-3).over(net.parameters()),
        data.x,
        data.y,
        batch_size=50,
        seed=seed,
        name="digits",
    )
    for _ in range(epochs):
        next(losses)
    return net.eval()


def context(x: Tensor, seed: int = 0) -> Context:
    return Context(Keys.of(seed, torch.arange(len(x))))


def answers(defense: Defense, x: Tensor) -> Tensor:
    ctx = context(x)
    with torch.no_grad():
        return defense.answer(defense.trace(x, ctx), ctx)


def fingerprint(value: object) -> str:
    """Return a digest of all numbers, modes and hooks of the networks and tensors in a value."""
    digest = hashlib.sha256()
    _feed(digest, value)
    return digest.hexdigest()


def _feed(digest, value: object) -> None:  # type: ignore[no-untyped-def]
    if isinstance(value, Tensor):
        digest.update(str((value.dtype, value.shape, value.requires_grad)).encode())
        digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    elif isinstance(value, nn.Module):
        digest.update(
            str(
                [
                    (m.training, len(m._forward_hooks), len(m._forward_pre_hooks))
                    for m in value.modules()
                ]
            ).encode()
        )
        _feed(digest, dict(value.named_parameters()))
        _feed(digest, dict(value.named_buffers()))
    elif isinstance(value, Mapping):
        for key in value:
            digest.update(str(key).encode())
            _feed(digest, value[key])
    elif isinstance(value, tuple | list):
        for item in value:
            _feed(digest, item)
    elif isinstance(value, Defense):
        _feed(digest, vars(value))
    elif is_dataclass(value):
        _feed(digest, {f.name: getattr(value, f.name) for f in fields(value)})
    else:
        digest.update(
            repr(value).encode()
            if isinstance(value, int | float | str)
            else type(value).__name__.encode()
        )
