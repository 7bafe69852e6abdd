"""Random numbers of a net are a function of the keys, whichever generator they come from."""

from __future__ import annotations

import functools
import os
import random
import secrets
import threading
import uuid
from dataclasses import dataclass, field

import numpy
import pytest
import torch
from torch import nn

import saddlepoint as sp
from saddlepoint.defenses.generators import generators_of
from saddlepoint.rng import seeded_globals

GLOBAL = numpy.random.default_rng(1)
X = torch.zeros(3, 2)


@dataclass
class Settings:
    generator: random.Random = field(default_factory=lambda: random.Random(0))


class Slots:
    __slots__ = ("generator",)

    def __init__(self):
        self.generator = numpy.random.RandomState(0)


class Noise(nn.Module):
    """Adds noise that a function draws."""

    def __init__(self, draw, **kept):
        super().__init__()
        self.draw = draw
        for name, value in kept.items():
            setattr(self, name, value)

    def forward(self, x):
        return x + self.draw(self)


class ByMethod(nn.Module):
    shared = torch.Generator().manual_seed(1)

    def forward(self, x):
        return x + torch.randn(x.shape, generator=self.shared)


def closure():
    generator = torch.Generator().manual_seed(1)
    return lambda _: torch.randn(1, generator=generator)


def of_torch(generator):
    return torch.randn(1, generator=generator)


LOCAL = threading.local()
LOCAL.generator = random.Random(4)
GENERATORS = {
    "attribute": Noise(lambda s: of_torch(s.g), g=torch.Generator()),
    "list": Noise(lambda s: of_torch(s.g[0]), g=[torch.Generator()]),
    "dictionary": Noise(lambda s: of_torch(s.g["a"]["b"]), g={"a": {"b": torch.Generator()}}),
    "closure": Noise(closure()),
    "partial": Noise(lambda s: s.f(), f=functools.partial(of_torch, torch.Generator())),
    "bound method": Noise(lambda s: s.f(), f=random.Random(0).random),
    "data class": Noise(lambda s: s.s.generator.random(), s=Settings()),
    "slots": Noise(lambda s: s.s.generator.rand(), s=Slots()),
    "global": Noise(lambda _: GLOBAL.random()),
    "class attribute": ByMethod(),
    "thread": Noise(lambda _: LOCAL.generator.random()),
    "numpy": Noise(lambda s: s.g.standard_normal(), g=numpy.random.default_rng(3)),
}
UNSEEDED = {
    "numpy": Noise(lambda _: numpy.random.default_rng().random()),
    "numpy, old": Noise(lambda _: numpy.random.RandomState().rand()),
    "python": Noise(lambda _: random.Random().random()),
    "system": Noise(lambda _: random.SystemRandom().random()),
    "bytes": Noise(lambda _: os.urandom(1)[0]),
    "secrets": Noise(lambda _: secrets.randbelow(1000)),
    "uuid": Noise(lambda _: uuid.uuid4().int % 1000),
}
ALL = {**GENERATORS, **{f"without a seed: {name}": net for name, net in UNSEEDED.items()}}


@pytest.mark.parametrize("net", ALL.values(), ids=ALL)
def test_noise_is_a_function_of_the_keys(net):
    defense = sp.Plain(net, random=True)
    outputs = [defense.respond(X, sp.Context.seeded(seed, 3)) for seed in (0, 0, 1)]
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])


@pytest.mark.parametrize("net", GENERATORS.values(), ids=GENERATORS)
def test_the_state_of_a_generator_is_restored(net):
    (generator,) = generators_of(net)

    def state():
        if isinstance(generator, torch.Generator):
            return generator.get_state().tolist()
        if isinstance(generator, random.Random):
            return generator.getstate()
        return str(getattr(generator, "bit_generator", generator).__getstate__())

    before = state()
    sp.Plain(net, random=True).respond(X, sp.Context.seeded(5, 3))
    assert state() == before


def test_two_generators_draw_different_numbers():
    net = Noise(
        lambda s: torch.cat([of_torch(s.a), of_torch(s.b)]),
        a=torch.Generator(),
        b=torch.Generator(),
    )
    out = sp.Plain(net, random=True).respond(torch.zeros(1, 2), sp.Context.seeded(0, 1))
    assert out[0, 0] != out[0, 1]


def test_other_threads_keep_the_random_bytes_of_the_system():
    drawn = []
    original = os.urandom
    with seeded_globals(0, torch.device("cpu")):
        for _ in range(2):
            thread = threading.Thread(target=lambda: drawn.append(os.urandom(16)))
            thread.start()
            thread.join()
    with seeded_globals(0, torch.device("cpu")):
        thread = threading.Thread(target=lambda: drawn.append(os.urandom(16)))
        thread.start()
        thread.join()
    assert len(set(drawn)) == 3
    assert os.urandom is original
