"""Randomness that belongs to an example, not to the batch it happens to stand in.

A coin is a function, not a stream: the k-th number that row i draws depends on the seed, on the id of row i and on k, and on
nothing else. Dropping a neighbor, changing the order of rows or the batch size therefore cannot change a row's noise, a run can be
resumed anywhere, and a step recomputed in a backward pass sees the very coins it saw going forward.

The function is SplitMix64 (Steele, Lea & Flood 2014) in wrapping 64-bit integer arithmetic, so every device gives the same bits.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import numpy
import torch
from torch import Tensor

_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed 64-bit integer
_MIX_1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
_MIX_2 = -7723592293110705685  # 0x94D049BB133111EB

_listening: ContextVar[list[int] | None] = ContextVar("listening", default=None)


def _shift(z: Tensor, bits: int) -> Tensor:
    """Logical right shift; torch's own is arithmetic."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def _mix(z: Tensor) -> Tensor:
    z = (z ^ _shift(z, 30)) * _MIX_1
    z = (z ^ _shift(z, 27)) * _MIX_2
    return z ^ _shift(z, 31)


@dataclass(frozen=True)
class Keys:
    """One key per row; every draw is a pure function of the key and of the position in the drawn tensor."""

    state: Tensor  # [N] int64
    origin: Tensor  # [N] int64: the keys before anything was folded in

    @classmethod
    def of(cls, seed: int, ids: Tensor) -> Keys:
        state = _mix(_mix(ids.long() + _GOLDEN) + _wrapped(seed))
        return cls(state, state)

    def __len__(self) -> int:
        return len(self.state)

    def __getitem__(self, rows: Tensor) -> Keys:
        return Keys(self.state[rows], self.origin[rows])

    def fold_in(self, salt: int | Tensor) -> Keys:
        """New coins for the same rows; `salt` may be one number or one per row."""
        salt = salt.to(self.state) if isinstance(salt, Tensor) else _wrapped(salt)
        return Keys(
            _mix(self.state ^ _mix(torch.as_tensor(salt, device=self.state.device) + _GOLDEN)),
            self.origin,
        )

    def as_root(self) -> Keys:
        """The same coins, to which `unfold` returns from now on."""
        return Keys(self.state, self.state)

    def root(self) -> Keys:
        """The coins at their root: the same draw whenever it is asked for."""
        return Keys(self.origin, self.origin)

    def uniform(self, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
        """[N, *shape] in [0, 1), with as many bits as the type can hold."""
        bits = 1 - round(math.log2(torch.finfo(dtype).eps))
        return (_shift(self._bits(math.prod(shape)), 64 - bits).to(dtype) * 2.0**-bits).view(
            -1, *shape
        )

    def normal(self, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
        """[N, *shape] standard normal, by Box and Muller."""
        count = math.prod(shape)
        half = (count + 1) // 2
        u, v = self.uniform((2, half), dtype).unbind(1)
        radius = (-2 * (1 - u).log()).sqrt()
        angle = 2 * math.pi * v
        return torch.cat([radius * angle.cos(), radius * angle.sin()], dim=1)[:, :count].reshape(
            -1, *shape
        )

    def integers(self, high: int | Tensor, shape: tuple[int, ...] = ()) -> Tensor:
        """[N, *shape] int64 in [0, high)."""
        return (self.uniform(shape, torch.float64) * high).floor().long()

    def signs(self, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
        """[N, *shape] of -1 and +1."""
        return (_shift(self._bits(math.prod(shape)), 63) * 2 - 1).to(dtype).view(-1, *shape)

    def batch_seed(self) -> int:
        """One 63-bit seed for the whole batch: for randomness that a defense shares among its rows."""
        _heard(1)
        total = _mix(_mix(self.state).sum())
        return int(total.item()) & (2**63 - 1)

    def _bits(self, count: int) -> Tensor:  # [N, count]
        _heard(count)
        steps = torch.arange(1, count + 1, device=self.state.device) * _GOLDEN
        return _mix(self.state[:, None] + steps)


@contextmanager
def count_draws(device: torch.device) -> Iterator[list[int]]:
    """How many numbers each draw asked for while this lasts, of any coins and however deep; then one more for global generators.

    Empty at its end where nothing was tossed at all.
    """
    heard = list[int]()
    before = _states(device)
    token = _listening.set(heard)
    try:
        yield heard
    finally:
        _listening.reset(token)
        heard.extend([1] * (_states(device) != before))


def _states(device: torch.device) -> tuple[object, ...]:
    """Of the global generators of torch, numpy and Python."""
    kind, words, *rest = numpy.random.get_state()  # noqa: NPY002
    of_torch = [
        torch.get_rng_state(),
        *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else []),
    ]
    return (
        random.getstate(),
        kind,
        numpy.asarray(words).tobytes(),
        *rest,
        *(bytes(state.tolist()) for state in of_torch),
    )


def _heard(count: int) -> None:
    if (heard := _listening.get()) is not None:
        heard.append(count)


@contextmanager
def seeded_globals(seed: int, device: torch.device) -> Iterator[None]:
    """The global generators of torch, numpy and Python, seeded for a while and then put back as they were.

    For code that hides its randomness there: inside, what it draws is a function of the seed.
    """
    of_python = random.getstate()
    of_numpy = numpy.random.get_state()  # noqa: NPY002
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(seed)
            random.seed(seed)
            numpy.random.seed(seed % 2**32)  # noqa: NPY002
            yield
    finally:
        random.setstate(of_python)
        numpy.random.set_state(of_numpy)  # noqa: NPY002


def _wrapped(number: int) -> int:
    """The number modulo 2^64, as a signed 64-bit integer."""
    return (number + 2**63) % 2**64 - 2**63
