"""What an answer costs, in answers of the static net: passes, operations and seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from saddlepoint.defenses import Context, Defense
from saddlepoint.papers.adaptive.attacks import static
from saddlepoint.rng import Keys

_TRIES = 3  # of which the fastest counts


class Cost(NamedTuple):
    """Of one answer."""

    forward: float  # passes of the static net, also such as end at an inner layer
    backward: float
    work: float  # operations of all networks, in those of one pass of the static net
    seconds: float  # in seconds of the static net's answer, on this machine


def cost(defense: Defense, x: Tensor) -> Cost:
    """Measured on the images x, all at once."""
    plain = static(defense)
    with passing(plain.net) as passed:
        _answer(defense, x)
    work = _operations(defense, x) / _operations(plain, x)
    return Cost(
        passed.forward / len(x),
        passed.backward / len(x),
        work,
        _seconds(defense, x) / _seconds(plain, x),
    )


@dataclass
class PassCost:
    """Of single images."""

    forward: int = 0
    backward: int = 0


@contextmanager
def passing(net: nn.Module) -> Iterator[PassCost]:
    """Counts the images that a net is shown, and those whose gradient comes back to where the net was entered."""
    passed = PassCost()

    def entered(module: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:  # noqa: ARG001
        x, *rest = given
        passed.forward += len(x)
        if not (torch.is_grad_enabled() and x.requires_grad):
            return given
        here = x.view_as(
            x
        )  # each entrance has a gradient of its own, also where several passes share an input

        def returned(grad: Tensor) -> None:
            passed.backward += len(grad)

        here.register_hook(returned)
        return (here, *rest)

    handle = net.register_forward_pre_hook(entered)
    try:
        yield passed
    finally:
        handle.remove()


def _answer(defense: Defense, x: Tensor) -> Tensor:
    with torch.no_grad():
        return defense.respond(
            x, Context(Keys.of(0, torch.arange(len(x), device=x.device)), keep=frozenset())
        )


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts those of convolutions and matrix products. Torch's own counter also follows modules, and refuses `autograd.grad`."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if (formula := flop_registry.get(func.overloadpacket)) is not None:
            self.total += int(formula(*args, **(kwargs or {}), out_val=out))
        return out


def _operations(defense: Defense, x: Tensor) -> int:
    counted = _Operations()
    with counted:
        _answer(defense, x)
    return counted.total


def _seconds(defense: Defense, x: Tensor) -> float:
    return min(_timed(lambda: _answer(defense, x)) for _ in range(_TRIES))


def _timed(work: Callable[[], Tensor]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
