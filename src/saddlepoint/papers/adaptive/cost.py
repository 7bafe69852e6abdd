"""The cost of one inference relative to the static network: passes, FLOPs and seconds."""

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

_REPEATS = 3  # timings; the fastest counts


class InferenceCost(NamedTuple):
    """The cost of one inference of a defense."""

    forward: float  # forward passes of the static network, including those to an inner layer
    backward: float  # backward passes of the static network
    flops: float  # of all networks, in units of one forward pass of the static network
    seconds: float  # in units of the static network's inference time on this machine


def inference_cost(defense: Defense, x: Tensor) -> InferenceCost:
    """Measure the cost of one inference on the images x, evaluated as one batch."""
    plain = static(defense)
    with counted_passes(plain.net) as passes:
        _infer(defense, x)
    return InferenceCost(
        forward=passes.forward / len(x),
        backward=passes.backward / len(x),
        flops=_flops(defense, x) / _flops(plain, x),
        seconds=_seconds(defense, x) / _seconds(plain, x),
    )


@dataclass
class PassCount:
    """Passes of single images through a network."""

    forward: int = 0
    backward: int = 0


@contextmanager
def counted_passes(net: nn.Module) -> Iterator[PassCount]:
    """Count the images that enter a network, and the gradients that reach its input."""
    passes = PassCount()

    def on_input(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:  # noqa: ARG001
        x, *rest = inputs
        passes.forward += len(x)
        if not (torch.is_grad_enabled() and x.requires_grad):
            return inputs
        # A view has its own gradient, so passes that share an input are counted separately.
        own = x.view_as(x)

        def on_gradient(grad: Tensor) -> None:
            passes.backward += len(grad)

        own.register_hook(on_gradient)
        return (own, *rest)

    handle = net.register_forward_pre_hook(on_input)
    try:
        yield passes
    finally:
        handle.remove()


def _infer(defense: Defense, x: Tensor) -> Tensor:
    keys = Keys.of(0, torch.arange(len(x), device=x.device))
    with torch.no_grad():
        return defense.respond(x, Context(keys, keep=frozenset()))


class _FlopCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the FLOPs of convolutions and matrix products.

    Torch's own counter also tracks modules, and fails with `autograd.grad`.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if (formula := flop_registry.get(func.overloadpacket)) is not None:
            self.total += int(formula(*args, **(kwargs or {}), out_val=out))
        return out


def _flops(defense: Defense, x: Tensor) -> int:
    counter = _FlopCounter()
    with counter:
        _infer(defense, x)
    return counter.total


def _seconds(defense: Defense, x: Tensor) -> float:
    return min(_timed(lambda: _infer(defense, x)) for _ in range(_REPEATS))


def _timed(work: Callable[[], Tensor]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
