"""Counts of forward and backward passes through targets, by image."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True)
class PassCount:
    """A number of passes. A batch of N images makes N passes."""

    forward: int = 0
    backward: int = 0

    def __add__(self, other: PassCount) -> PassCount:
        return PassCount(self.forward + other.forward, self.backward + other.backward)


@dataclass
class PassCounter:
    """Passes so far."""

    total: PassCount = PassCount()


_counters: ContextVar[tuple[PassCounter, ...]] = ContextVar("pass_counters", default=())


@contextmanager
def count_passes() -> Iterator[PassCounter]:
    """Count the passes of all defenses that are called inside a `with` block.

    Blocks may be nested; a pass then counts in each of them. A forward pass is a call of a
    defense with a `Context` of its own, a backward pass a gradient by `Backprop`.

    Yields:
        The counter, which grows while the block runs.
    """
    counter = PassCounter()
    token = _counters.set((*_counters.get(), counter))
    try:
        yield counter
    finally:
        _counters.reset(token)


def add_forward(rows: int) -> None:
    """Count a forward pass of this number of images."""
    _add(PassCount(forward=rows))


def add_backward(rows: int) -> None:
    """Count a backward pass of this number of images."""
    _add(PassCount(backward=rows))


def _add(passes: PassCount) -> None:
    for counter in _counters.get():
        counter.total = counter.total + passes
