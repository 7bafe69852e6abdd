"""Which nets are pure functions, so that probes need no repeated calls."""

from __future__ import annotations

import random
import time

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from saddlepoint.attacks.spaces import Linf
from saddlepoint.audits.probes.probe_target import ProbeTarget
from saddlepoint.audits.target.pure_function import is_pure
from saddlepoint.passes import count_passes

X = torch.linspace(0, 1, 4 * 6).view(4, 6)
CALLS = [0]
GENERATOR = torch.Generator()


class Net(nn.Module):
    """A linear net with one more step."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.step(x))

    def step(self, x: Tensor) -> Tensor:
        return functional.relu(x - 0.5)


class Deep(Net):
    def __init__(self) -> None:
        super().__init__()
        self.widths = {"first": 6}
        self.shape = torch.tensor([-1, 6])
        self.norm = nn.BatchNorm1d(6).eval()
        self.drop = nn.Dropout(0.5).eval()

    def step(self, x: Tensor) -> Tensor:
        rows = [int(k) for k in self.shape.tolist()]  # does not depend on images
        x = x.reshape(rows)[:, torch.arange(self.widths["first"])]
        return self.drop(self.norm(x)) * sum(1 / (1 + k) for k in range(2))


class Noise(Net):
    def step(self, x: Tensor) -> Tensor:
        return x + 1e-9 * torch.randn_like(x)


class OwnGenerator(Net):
    def step(self, x: Tensor) -> Tensor:
        return x + torch.rand(6, generator=GENERATOR)


class PythonNoise(Net):
    def step(self, x: Tensor) -> Tensor:
        return x * random.choice((1, 2))


class NumpyNoise(Net):
    def step(self, x: Tensor) -> Tensor:
        return x * float(np.random.rand())  # noqa: NPY002


class Clock(Net):
    def step(self, x: Tensor) -> Tensor:
        return x * (1 + int(time.time()) % 2)


class ImportedClock(Net):
    def step(self, x: Tensor) -> Tensor:
        import time as clock

        return x * (1 + int(clock.time()) % 2)


class ClockAttribute(Net):
    def __init__(self) -> None:
        super().__init__()
        self.now = time.time

    def step(self, x: Tensor) -> Tensor:
        return x * (1 + int(self.now()) % 2)


class Counter(Net):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def step(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x * (1 + self.calls // 1000)


class GlobalCounter(Net):
    def step(self, x: Tensor) -> Tensor:
        CALLS[0] += 1
        return x * (1 + CALLS[0] // 1000)


class Buffer(Net):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(6))

    def step(self, x: Tensor) -> Tensor:
        self.total.data += x.mean(0)
        return x


class Iterates(Net):
    def __init__(self) -> None:
        super().__init__()
        self.scales = iter([1.0] * 1000 + [2.0])

    def step(self, x: Tensor) -> Tensor:
        return x * next(self.scales)


class Decides(Net):
    def step(self, x: Tensor) -> Tensor:
        return x if x.mean() > 0.2 else -x


class DecidesByList(Net):
    def step(self, x: Tensor) -> Tensor:
        return x if sum(x[0].tolist()) > 0.2 else -x


class Selects(Net):
    def step(self, x: Tensor) -> Tensor:
        return x[x[:, 0] >= 0]


class Uninitialized(Net):
    def step(self, x: Tensor) -> Tensor:
        return x + 0 * torch.empty(6)


class Identity(Net):
    def step(self, x: Tensor) -> Tensor:
        return x * (1 + id(x) % 2)


class NoiseInGradientMode(Net):
    def step(self, x: Tensor) -> Tensor:
        return functional.dropout(x, 0.1, training=torch.is_grad_enabled())


class NoiseForAttackers(Net):
    def step(self, x: Tensor) -> Tensor:
        return x + torch.randn_like(x) if x.requires_grad else x


@pytest.mark.parametrize("net", [Net, Deep], ids=lambda net: net.__name__)
def test_torch_operations_on_images_and_weights_are_pure(net):
    assert is_pure(net(), X)


@pytest.mark.parametrize(
    "net",
    [
        Noise,
        OwnGenerator,
        PythonNoise,
        NumpyNoise,
        Clock,
        ImportedClock,
        ClockAttribute,
        Counter,
        GlobalCounter,
        Buffer,
        Iterates,
        Decides,
        DecidesByList,
        Selects,
        Uninitialized,
        Identity,
        NoiseInGradientMode,
        NoiseForAttackers,
    ],
    ids=lambda net: net.__name__,
)
def test_randomness_state_clocks_and_decisions_are_not_pure(net):
    assert not is_pure(net(), X)


def test_hooks_with_state_are_not_pure():
    net = Net()
    seen: list[int] = []
    net.linear.register_forward_hook(lambda module, inputs, out: seen.append(len(out)))
    assert not is_pure(net, X)


def test_training_mode_of_dropout_is_not_pure():
    net = Deep()
    net.drop.train()
    assert not is_pure(net, X)


def test_a_pure_net_is_not_called_to_find_randomness_or_state():
    def calls(net: nn.Module) -> int:
        target = ProbeTarget.of(net, X, torch.tensor([0, 1, 2, 0]), Linf(0.1))
        with count_passes() as counter:
            assert not target.randomized
            assert not target.uncontrolled
        return counter.total.forward // len(X)

    class ReadsMean(Net):
        def step(self, x: Tensor) -> Tensor:
            return x * (1 + int(x.mean() > 10))

    assert calls(ReadsMean()) >= 20
    assert calls(Net()) == 1
