"""Seeds for random generators that a network keeps.

A generator of its own (`torch.Generator`, `numpy.random.default_rng`, `random.Random`) is not
reached by a global seed. A copy of the network would start with its state every time, and would
look deterministic.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy
import torch

from saddlepoint.defenses.reachable import reachable
from saddlepoint.rng import seeded_globals

_SALT = 0x9E3779B97F4A7C15  # another seed for every generator


@contextmanager
def seeded(net: object, seed: int, device: torch.device) -> Iterator[None]:
    """Seed the global generators and all that `net` can reach, and restore their states.

    Args:
        net: a network or another object with code.
        seed: any integer from 0 to 2^64 - 1.
        device: the global generator of this device is seeded as well as that of the CPU.
    """
    with seeded_globals(seed, device), ExitStack() as restore:
        for k, generator in enumerate(generators_of(net), start=1):
            restore.callback(_seed(generator, (seed + k * _SALT) % 2**64))
        yield


def generators_of(net: object) -> list[Any]:
    """The generators that a network can reach, other than global ones."""
    kinds = (torch.Generator, numpy.random.Generator, numpy.random.RandomState, random.Random)
    shared = {id(torch.default_generator), id(numpy.random.mtrand._rand)}
    found = [value for _, value in reachable(net) if isinstance(value, kinds)]
    return [
        one for one in found if not isinstance(one, random.SystemRandom) and id(one) not in shared
    ]


def _seed(generator: Any, seed: int) -> Callable[[], object]:
    """Seed one generator. Returns a function that restores its state."""
    if isinstance(generator, torch.Generator):
        state = generator.get_state()
        generator.manual_seed(seed)
        return lambda: generator.set_state(state)
    if isinstance(generator, random.Random):
        of_python = generator.getstate()
        generator.seed(seed)
        return lambda: generator.setstate(of_python)
    bits = getattr(generator, "bit_generator", None) or generator._bit_generator
    of_numpy = bits.state
    bits.state = type(bits)(seed).state
    return lambda: setattr(bits, "state", of_numpy)
