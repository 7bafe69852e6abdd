"""Failures of earlier audits, each with its true robust accuracy or the error that is expected."""

from __future__ import annotations

import time
from collections import namedtuple
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

import saddlepoint as sp
from saddlepoint import zoo
from saddlepoint.attacks.losses import SmoothError
from saddlepoint.attacks.spaces import Ball
from saddlepoint.audits import Target
from saddlepoint.selftests.case import Case, Truth, linear_truth, truth_after
from saddlepoint.selftests.exact import mixture
from saddlepoint.selftests.families import CASES
from saddlepoint.selftests.problem import (
    Affine,
    Problem,
    four_classes,
    toward,
    two_classes,
    worst_margins,
)

Output = namedtuple("Output", ["logits", "auxiliary"])
_NETS = 5  # chosen by the clock
_SPREAD = 0.35  # standard deviation of the weights of these nets, relative to the problem's
_STEPS = 200  # of the attack by hand
_STARTS = 6


@dataclass(frozen=True)
class Request:
    """What an audit is asked for."""

    target: Target
    x: Tensor
    y: Tensor
    threat: Ball


@dataclass(frozen=True)
class Listed:
    """A failure that was seen, the request that showed it, and what is right."""

    kind: str
    name: str
    request: Callable[[], Request]
    truth: Callable[[], Truth] | None = None  # None: the audit must not reach an accuracy
    refused: str = ""  # a part of the error that is expected; empty: none is
    inconclusive: str = ""  # a part of the reasons that are expected; empty: any


class DetachedStatistics(nn.Module):
    """Pixels are normalized by statistics of the test batch, which are detached."""

    def __init__(self, net: nn.Module, *, detached: bool = True) -> None:
        super().__init__()
        self.net = net
        self.detached = detached

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean()
        std = x.std()
        if self.detached:
            mean = mean.detach()
            std = std.detach()
        logits: Tensor = self.net(0.3 + 0.37 * (x - mean) / std)
        return logits


class ByClock(nn.Module):
    """The clock chooses one of several linear nets in every call."""

    def __init__(self, nets: Sequence[nn.Module]) -> None:
        super().__init__()
        self.nets = nn.ModuleList(nets)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.nets[time.perf_counter_ns() // 100 % len(self.nets)](x)
        return logits


class ByOwnHook(nn.Module):
    """The features come through a forward hook that writes into the module."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.flat = nn.Flatten()
        self.net = net
        self.flat.register_forward_hook(self._keep)

    def _keep(self, _module: nn.Module, _inputs: tuple[Any, ...], out: Tensor) -> None:
        self.features = out

    def forward(self, x: Tensor) -> Tensor:
        self.flat(x)
        logits: Tensor = self.net(self.features)
        return logits


class Quantized(nn.Module):
    """Pixels are rounded to multiples of 1/64 before a linear net."""

    def __init__(self, problem: Problem) -> None:
        super().__init__()
        self.weight = nn.Parameter(problem.weight.clone())
        self.bias = nn.Parameter(problem.bias.clone())

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear((x * 64).round().div(64).flatten(1), self.weight, self.bias)


class Auxiliary(nn.Module):
    """Returns a named tuple of logits and nothing, as nets with auxiliary classifiers do."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Output:
        return Output(self.net(x), None)


def _rounded(x: Tensor) -> Tensor:
    return (x * 64).round() / 64


def _clock_nets(problem: Problem) -> list[Affine]:
    generator = torch.Generator().manual_seed(5)
    scale = _SPREAD * problem.weight.std() * (torch.arange(len(problem.weight)) < 2)[:, None]
    shape = (_NETS, *problem.weight.shape)
    weights = problem.weight + scale * torch.randn(shape, generator=generator)
    return [Affine(weight, problem.bias) for weight in weights]


def _clock_truth(problem: Problem) -> Truth:
    nets = _clock_nets(problem)
    weights = torch.stack([(net.weight[0] - net.weight[1]).detach() for net in nets])
    biases = torch.stack([(net.bias[0] - net.bias[1]).detach() for net in nets])
    share = [1 / _NETS] * _NETS
    return Truth.of(mixture(weights, biases, share, *problem.box(), toward(problem.y)), random=True)


def _l1_truth(problem: Problem, radius: float) -> Truth:
    """The pixels with the largest weights move first, each until it reaches the box."""
    x = problem.x.flatten(1).double()
    robust = torch.ones(len(x), dtype=torch.bool)
    for j in range(len(problem.weight)):
        w = problem.weight.double()[j] - problem.weight.double()[problem.y]  # [N, d]
        margin = (w * x).sum(1) + (problem.bias[j] - problem.bias[problem.y]).double()
        order = w.abs().argsort(1, descending=True)
        room = torch.where(w > 0, 1 - x, x).gather(1, order)
        before = room.cumsum(1) - room
        moved = torch.minimum(room, (radius - before).clamp(min=0))
        worst = margin + (moved * w.abs().gather(1, order)).sum(1)
        robust &= (worst < 0) | (problem.y == j)
    return Truth.of(robust)


def _digits(net: str, n: int, radius: float) -> Request:
    x, y = sp.load_data("digits", n=n)
    return Request(zoo.load(net), x, y, sp.Linf(radius))


def _detached_statistics() -> Request:
    request = _digits("digits-pgd", 60, 0.15)
    net = zoo.load("digits-pgd")
    return replace(request, target=DetachedStatistics(net).eval())


def _attacked_by_hand() -> Truth:
    """Ascent on the smooth count of errors with exact gradients: an upper bound of the truth."""
    request = _detached_statistics()
    net = DetachedStatistics(zoo.load("digits-pgd"), detached=False).eval()
    x = request.x
    radius = request.threat.radius
    best = len(x)
    for start in range(_STARTS):
        torch.manual_seed(start)
        point = (x + radius * (2 * torch.rand_like(x) - 1)).clamp(0, 1)
        momentum = torch.zeros_like(x)
        for step in range(_STEPS):
            point.requires_grad_()
            logits = net(point)
            best = min(best, int((logits.argmax(1) == request.y).sum()))
            (grad,) = torch.autograd.grad(SmoothError()(logits, request.y).sum(), point)
            momentum = 0.75 * momentum + grad / grad.abs().mean()
            size = radius / 4 * (1 - step / _STEPS)
            point = point.detach() + size * momentum.sign()
            point = torch.minimum(torch.maximum(point, x - radius), x + radius).clamp(0, 1)
    return Truth.of(best / len(x))


def _selftest(kind: str, name: str) -> Listed:
    case = next(one for one in CASES if one.name == name)
    return _linear(kind, name, case)


def _linear(kind: str, name: str, case: Case) -> Listed:
    """A self-test case, or one that is built like them."""

    def request() -> Request:
        problem = case.problem()
        return Request(case.defense(problem), problem.x, problem.y, sp.Linf(problem.radius))

    return Listed(kind, name, request, lambda: case.truth(case.problem()))


def _built(
    kind: str,
    name: str,
    defense: Callable[[Problem], Target],
    truth: Callable[[Problem], Truth] = linear_truth,
    problem: Callable[[], Problem] = four_classes,
) -> Listed:
    return _linear(kind, name, Case(name, "", problem, defense, truth))


def _in_l1() -> Request:
    problem = four_classes()
    return Request(problem.net(), problem.x, problem.y, sp.L1(0.5))


def _shifted_labels() -> Request:
    request = _digits("digits-standard", 60, 0.1)
    return replace(request, y=(request.y + 1) % 10)


def _small_pixels() -> Request:
    request = _digits("digits-standard", 60, 0.1)
    return replace(request, x=request.x / 255)


def _none_correct(problem: Problem) -> Truth:
    """The radius of the problem breaks every image."""
    margins = worst_margins(problem.weight, problem.bias, *problem.box(), problem.y)
    return Truth.of(margins < 0)


LISTED = (
    _selftest("false credible", "teacher under no_grad"),
    Listed("false credible", "detached batch statistics", _detached_statistics, _attacked_by_hand),
    _selftest("false credible", "one named step"),
    _selftest("false credible", "patience"),
    *(
        _built(
            "wrong arithmetic",
            f"every image is broken, {n} images",
            lambda p: p.net(),
            _none_correct,
            lambda n=n: four_classes(n=n, radius=0.3),
        )
        for n in (64, 100, 500)
    ),
    Listed("wrong arithmetic", "labels off by one", _shifted_labels, refused="label"),
    Listed("wrong arithmetic", "pixels divided by 255 twice", _small_pixels, refused="255"),
    Listed(
        "wrong arithmetic",
        "radius 8",
        lambda: _digits("digits-standard", 60, 8.0),
        refused="8/255",
    ),
    Listed(
        "wrong arithmetic",
        "one image",
        lambda: _digits("digits-standard", 1, 0.1),
        lambda: Truth(0.0, 1.0),
        inconclusive="too few",
    ),
    Listed(
        "wrong arithmetic",
        "radius 0",
        lambda: _digits("digits-standard", 60, 0.0),
        lambda: Truth(0.0, 1.0),
        inconclusive="radius",
    ),
    _selftest("too low", "own generator"),
    _selftest("too high, inconclusive", "hot softmax"),
    _built(
        "too high, inconclusive",
        "one of five nets by the clock",
        lambda p: ByClock(_clock_nets(p)).eval(),
        _clock_truth,
        two_classes,
    ),
    _selftest("too high, inconclusive", "bits of pixels"),
    _selftest("too high, inconclusive", "dead zone"),
    _built("crash", "compiled", lambda p: torch.compile(p.net(), backend="eager")),
    _built(
        "crash",
        "scripted with a quantizer",
        lambda p: torch.jit.script(Quantized(p).eval()),
        truth_after(_rounded),
    ),
    _built(
        "crash",
        "traced with a quantizer",
        lambda p: torch.jit.trace(Quantized(p).eval(), p.x[:2]),
        truth_after(_rounded),
    ),
    _built("crash", "named tuple with auxiliary logits", lambda p: Auxiliary(p.net()).eval()),
    Listed("crash", "L1 on a linear net", _in_l1, lambda: _l1_truth(four_classes(), 0.5)),
    _selftest("hang", "new generator"),
    _selftest("hang", "pixel hash"),
    _selftest("rejected without need", "process cache"),
    _built("rejected without need", "own forward hook", lambda p: ByOwnHook(p.net()).eval()),
)
