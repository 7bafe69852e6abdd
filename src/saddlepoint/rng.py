"""Random numbers that belong to an example and do not depend on the batch it is in.

The generator is a function of a key and keeps no state. The k-th number drawn for an example
depends only on the seed, the id of the example and k. Removing other examples, reordering rows or
changing the batch size therefore does not change the noise of an example. A run can be resumed
anywhere, and a step that is recomputed in a backward pass draws the same numbers as in the forward
pass.

The function is SplitMix64 (Steele, Lea & Flood 2014) in wrapping 64-bit integer arithmetic, so
every device produces the same bits.
"""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed 64-bit integer
_MIX_1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
_MIX_2 = -7723592293110705685  # 0x94D049BB133111EB

_draw_counts: ContextVar[list[int] | None] = ContextVar("draw_counts", default=None)
# In place of the random bytes of the operating system; None: these bytes themselves.
_entropy: ContextVar[random.Random | None] = ContextVar("entropy", default=None)


def _shift(z: Tensor, bits: int) -> Tensor:
    """Logical right shift; the shift of torch is arithmetic."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def _mix(z: Tensor) -> Tensor:
    """The output function of SplitMix64.

    On the CPU numpy computes it: its operations on small arrays take a fraction of the time.
    """
    if z.device.type == "cpu":
        return torch.from_numpy(_mix_array(z.numpy()))
    return _mix_tensor(z)


def _mix_tensor(z: Tensor) -> Tensor:
    z = (z ^ _shift(z, 30)) * _MIX_1
    z = (z ^ _shift(z, 27)) * _MIX_2
    return z ^ _shift(z, 31)


def _mix_number(z: int) -> int:
    """The same for one number, which is reduced modulo 2^64; the result is signed."""
    z %= 2**64
    z = (z ^ (z >> 30)) * _MIX_1 % 2**64
    z = (z ^ (z >> 27)) * _MIX_2 % 2**64
    return _wrapped(z ^ (z >> 31))


def _mix_array(z: NDArray[numpy.int64]) -> NDArray[numpy.int64]:
    out = z.astype(numpy.uint64)  # a copy, in which shifts are logical
    out ^= out >> 30
    out *= _MIX_1 % 2**64
    out ^= out >> 27
    out *= _MIX_2 % 2**64
    out ^= out >> 31
    return out.view(numpy.int64)


@dataclass(frozen=True)
class Keys:
    """One random key per example.

    Every draw is a pure function of the key and of the position in the drawn tensor. Drawing twice
    from the same keys gives the same numbers; use `fold_in` to get independent numbers. Derived
    keys are computed when they are first used: most targets draw no random numbers.
    """

    base: Tensor  # [N] int64, the keys before `salt` is folded in
    origin: Tensor  # [N] int64, the keys to which `root` returns
    salt: int | Tensor | None = None  # one number, or one per example, [N]; None: nothing

    @cached_property
    def state(self) -> Tensor:
        """[N] int64, the current keys."""
        if self.salt is None:
            return self.base
        if isinstance(self.salt, Tensor):
            return _mix(self.base ^ _mix(self.salt + _GOLDEN))
        return _mix(self.base ^ _mix_number(self.salt + _GOLDEN))

    @classmethod
    def of(cls, seed: int, ids: Tensor) -> Keys:
        """Create the keys of the examples `ids`.

        Args:
            seed: any integer; it is reduced modulo 2^64.
            ids: identifiers of the examples, [N]; they are converted to int64.
        """
        state = _mix(_mix(ids.long() + _GOLDEN) + _wrapped(seed))
        return cls(state, state)

    def __len__(self) -> int:
        return len(self.base)

    def __getitem__(self, rows: Tensor) -> Keys:
        """The keys of some rows: indices [M] or a mask [N]."""
        return Keys(self.state[rows], self.origin[rows])

    def cpu(self) -> Keys:
        """The same keys on the host."""
        return Keys(self.state.cpu(), self.origin.cpu())

    def fold_in(self, salt: int | Tensor) -> Keys:
        """Derive independent keys for the same examples.

        Args:
            salt: one number, or one per example, [N]. Different salts give different keys.
        """
        salt = salt.to(self.base) if isinstance(salt, Tensor) else _wrapped(salt)
        return Keys(self.state, self.origin, salt)

    def as_root(self) -> Keys:
        """The same keys, made the origin to which `root` returns from now on."""
        return Keys(self.state, self.state)

    def root(self) -> Keys:
        """The keys before anything was folded in: they give the same draw in every call."""
        return Keys(self.origin, self.origin)

    def uniform(self, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
        """Uniform numbers in [0, 1), [N, *shape], with the full precision of `dtype`."""
        bits = 1 - round(math.log2(torch.finfo(dtype).eps))
        return (_shift(self._bits(math.prod(shape)), 64 - bits).to(dtype) * 2.0**-bits).view(
            -1, *shape
        )

    def normal(self, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
        """Standard normal numbers, [N, *shape], by the Box-Muller transform."""
        count = math.prod(shape)
        half = (count + 1) // 2
        u, v = self.uniform((2, half), dtype).unbind(1)
        radius = (-2 * (1 - u).log()).sqrt()
        angle = 2 * math.pi * v
        return torch.cat([radius * angle.cos(), radius * angle.sin()], dim=1)[:, :count].reshape(
            -1, *shape
        )

    def integers(self, high: int | Tensor, shape: tuple[int, ...] = ()) -> Tensor:
        """Uniform integers in [0, high), [N, *shape] int64."""
        return (self.uniform(shape, torch.float64) * high).floor().long()

    def signs(self, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
        """-1 or +1 with equal probability, [N, *shape]."""
        return (_shift(self._bits(math.prod(shape)), 63) * 2 - 1).to(dtype).view(-1, *shape)

    def batch_seed(self) -> int:
        """One 63-bit seed for the whole batch, for randomness that all its examples share."""
        _record_draw(1)
        total = _mix(_mix(self.state).sum())
        return int(total.item()) & (2**63 - 1)

    def _bits(self, count: int) -> Tensor:
        """64 random bits, [N, count] int64."""
        _record_draw(count)
        steps = torch.arange(1, count + 1, device=self.state.device) * _GOLDEN
        return _mix(self.state[:, None] + steps)


@contextmanager
def count_draws(device: torch.device) -> Iterator[list[int]]:
    """Record every draw of random numbers inside a `with` block.

    Args:
        device: the generator of this device is checked as well.

    Yields:
        A list with the size of each draw from any `Keys`. At the end of the block a 1 is appended
        if a global generator of torch, numpy or Python was used. The list is empty at the end if
        nothing random was drawn.
    """
    counts = list[int]()
    before = _global_states(device)
    token = _draw_counts.set(counts)
    try:
        yield counts
    finally:
        _draw_counts.reset(token)
        counts.extend([1] * (_global_states(device) != before))


def _global_states(device: torch.device) -> tuple[object, ...]:
    """The states of the global generators of torch, numpy and Python."""
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


def _record_draw(count: int) -> None:
    """Append the size of a draw to the list of the enclosing `count_draws`, if there is one."""
    if (counts := _draw_counts.get()) is not None:
        counts.append(count)


@contextmanager
def seeded_globals(seed: int, device: torch.device) -> Iterator[None]:
    """Seed the global generators of torch, numpy and Python, and restore their states at the end.

    Use it around code that draws from global generators: its randomness becomes a function of the
    seed. Random bytes of the operating system follow the seed as well, and with them generators
    that are created without a seed, `secrets` and `uuid4`. Other threads are not affected.

    Args:
        seed: any integer from 0 to 2^64 - 1; numpy receives it modulo 2^32.
        device: the generator of this device is restored as well as that of the CPU.
    """
    of_python = random.getstate()
    of_numpy = numpy.random.get_state()  # noqa: NPY002
    try:
        devices = [device] if device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices), _seeded_entropy(seed):
            _seed_torch(seed)
            random.seed(seed)
            numpy.random.seed(seed % 2**32)  # noqa: NPY002
            yield
    finally:
        random.setstate(of_python)
        numpy.random.set_state(of_numpy)  # noqa: NPY002


def _seed_torch(seed: int) -> None:
    """Seed the generators of torch on all devices.

    `torch.manual_seed` takes longer than a pass of a small net: for every kind of device that is
    not there it keeps the call and its stack, to repeat it should the device appear.
    """
    if _has_accelerator():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


@cache
def _has_accelerator() -> bool:
    """Whether torch can use another device than the CPU."""
    kinds = (torch.cuda, torch.mps, torch.xpu)
    return any(kind.is_available() for kind in kinds if hasattr(kind, "is_available"))


@contextmanager
def _seeded_entropy(seed: int) -> Iterator[None]:
    """Replace the random bytes of the operating system in this thread."""
    of_os = os.urandom
    of_python = random._urandom  # type: ignore[attr-defined]
    of_generator = random.Random.seed
    token = _entropy.set(random.Random(seed))
    os.urandom = _random_bytes(of_os)
    random._urandom = _random_bytes(of_python)  # type: ignore[attr-defined]
    random.Random.seed = _seed_or_bytes(of_generator)  # type: ignore[method-assign]
    try:
        yield
    finally:
        os.urandom = of_os
        random._urandom = of_python  # type: ignore[attr-defined]
        random.Random.seed = of_generator  # type: ignore[method-assign]
        _entropy.reset(token)


def _seed_or_bytes(original: Callable[..., None]) -> Callable[..., None]:
    """The seed of a generator of Python. Without one it takes bytes of the system by itself."""

    def seed(self: random.Random, a: Any = None, version: int = 2) -> None:
        if a is None and _entropy.get() is not None:
            a = int.from_bytes(os.urandom(32), "little")
        original(self, a, version)

    return seed


def _random_bytes(original: Callable[[int], bytes]) -> Callable[[int], bytes]:
    """Bytes of the seeded source in a thread that has one, else the original ones."""

    def draw(count: int, /) -> bytes:
        source = _entropy.get()
        return original(count) if source is None else source.randbytes(count)

    return draw


def _wrapped(number: int) -> int:
    """The number modulo 2^64, as a signed 64-bit integer."""
    return (number + 2**63) % 2**64 - 2**63
