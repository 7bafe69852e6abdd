"""Randomness and state that lie outside of the weights of a model and of the global seed."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import ClassVar, cast

import numpy
import torch
from torch import Tensor, nn

from saddlepoint.selftests.case import Case, Truth, linear_truth
from saddlepoint.selftests.problem import Affine, Problem, four_classes, two_classes, worst_margins
from saddlepoint.selftests.randomness import SIGMA, noise_truth

_TEMPERATURE = 1e4
_MEMBERS = 3
_SPREAD = 0.35  # standard deviation of the members' weights, relative to those of the problem


class OwnGenerator(nn.Module):
    """x + sigma n, where n is drawn from a generator that the module keeps.

    A copy of the module starts with the state of this generator, and draws the same noise.
    """

    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(3)

    def forward(self, x: Tensor) -> Tensor:
        return x + SIGMA * torch.randn(x.shape, generator=self.generator, dtype=x.dtype)


class NewGenerator(nn.Module):
    """x + sigma n, where n is drawn from a new generator without a seed in every call."""

    def forward(self, x: Tensor) -> Tensor:
        noise = numpy.random.default_rng().standard_normal(x.shape)
        return x + SIGMA * torch.from_numpy(noise).to(x)


class HotSoftmax(nn.Module):
    """softmax((W (x + sigma n) + b) / 10000): noise changes outputs in the fifth decimal."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        z = cast(Tensor, self.net(x + SIGMA * torch.randn_like(x)))
        return (z / _TEMPERATURE).softmax(1)


class ProcessCache(nn.Module):
    """Outputs of known batches come from a cache that all copies share, without a gradient."""

    cache: ClassVar[dict[bytes, Tensor]] = {}

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        self.cache.clear()

    def forward(self, x: Tensor) -> Tensor:
        key = x.detach().numpy().tobytes()
        if key in self.cache:
            return self.cache[key]
        z = cast(Tensor, self.net(x))
        self.cache[key] = z.detach()
        return z


class PixelHash(nn.Module):
    """A hash of the pixels chooses one of several linear nets for each image.

    Any change of a pixel, however small, chooses another one at random. The attacker can repeat the
    choice as often as it likes.
    """

    def __init__(self, nets: Sequence[nn.Module]) -> None:
        super().__init__()
        self.nets = nn.ModuleList(nets)

    def forward(self, x: Tensor) -> Tensor:
        digests = [hashlib.sha256(row.detach().numpy().tobytes()).digest() for row in x]
        chosen = torch.tensor([int.from_bytes(one[:4], "little") for one in digests])
        outputs = torch.stack([cast(Tensor, net(x)) for net in self.nets])
        return outputs[chosen % len(self.nets), torch.arange(len(x))]


def members(problem: Problem) -> list[Affine]:
    """The linear nets of `PixelHash`: the classifier of the problem with other live weights."""
    generator = torch.Generator().manual_seed(5)
    scale = _SPREAD * problem.weight.std() * (torch.arange(len(problem.weight)) < 2)[:, None]
    shape = (_MEMBERS, *problem.weight.shape)
    weights = problem.weight + scale * torch.randn(shape, generator=generator)
    return [Affine(weight, problem.bias) for weight in weights]


def _hash_truth(problem: Problem) -> Truth:
    """An image is robust if it is robust under every member.

    Near the worst corner of a member that can be broken there is a region where it is wrong, and a
    share of the points of any region chooses this member.
    """
    worst = [
        worst_margins(net.weight.detach(), net.bias.detach(), *problem.box(), problem.y)
        for net in members(problem)
    ]
    return Truth.of((torch.stack(worst) < 0).all(0))


CASES = (
    Case(
        "own generator",
        "noise comes from a generator inside the model, which every copy restores",
        two_classes,
        lambda p: nn.Sequential(OwnGenerator(), p.net()).eval(),
        noise_truth,
    ),
    Case(
        "new generator",
        "noise comes from a generator without a seed, created in every call",
        two_classes,
        lambda p: nn.Sequential(NewGenerator(), p.net()).eval(),
        noise_truth,
    ),
    Case(
        "hot softmax",
        "noise changes outputs only in the fifth decimal",
        two_classes,
        lambda p: HotSoftmax(p.net()).eval(),
        noise_truth,
    ),
    Case(
        "process cache",
        "known images get an output without a gradient from a cache of the process",
        four_classes,
        lambda p: ProcessCache(p.net()).eval(),
        linear_truth,
    ),
    Case(
        "pixel hash",
        "a hash of the pixels chooses one of three nets",
        lambda: two_classes(radius=0.04),
        lambda p: PixelHash(members(p)).eval(),
        _hash_truth,
    ),
)
