"""A network opened from outside: layers that lose gradients, and functions of torch that have none, become sites."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from saddlepoint.audits.target.copy import copied
from saddlepoint.defenses import Context, Plain, Trace, View

_FLAT = (
    "sign",
    "round",
    "floor",
    "ceil",
    "trunc",
    "heaviside",
    "detach",
)  # of one tensor: slope zero, or none
_STEPS = {
    "gt": 1,
    "ge": 1,
    "lt": -1,
    "le": -1,
}  # comparisons: the sign of the first argument in what is compared with zero
_WHOLE = ("byte", "int", "long", "short", "to", "type")  # casts; the last two also back to floats
_FLOATS = ("float", "double", "half", "to", "type", "type_as")
NO_GRAD = "torch.no_grad"
BACKWARD = "torch.autograd.Function"
SCORES = "scores of "  # a layer
INPUT = "input of "  # a layer
FUNCTIONS = (*(f"torch.{name}" for name in (*_FLAT, *_STEPS, *_WHOLE)), NO_GRAD, BACKWARD)


class Instrumented(Plain):
    """The network as it is, with sites: `layers` by their names in it, and the functions of `FUNCTIONS` that are named.

    Values are those of the network. Without a rule at a site so are gradients; `BPDA()` there carries a gradient across it
    (Athalye et al. 2018, Sec. 4.1), and at the site `torch.no_grad` it records what the network computes under no_grad. Comparisons
    and casts to whole numbers are crossed where their result becomes a float again. At the site `torch.autograd.Function` it leads
    around every backward pass that is written by hand and gives back what has the shape of what it is given. At the site
    `scores of LAYER`, and only with a rule there, what that layer gives is answered instead of what the network makes of it. At the
    site `input of LAYER` it leads around all that made the layer's input of the images, out of torch perhaps, as long as the input
    has their shape and no gradient of its own.
    """

    def __init__(
        self, net: nn.Module, sites: tuple[str, ...], *, random: bool = False, coupled: bool = False
    ) -> None:
        super().__init__(net, random=random, coupled=coupled)
        self.functions = frozenset(site for site in sites if site in FUNCTIONS)
        layers = dict(net.named_modules())
        self.scores = {
            site: layers[site.removeprefix(SCORES)] for site in sites if site.startswith(SCORES)
        }
        self.inputs = {
            site: layers[site.removeprefix(INPUT)] for site in sites if site.startswith(INPUT)
        }
        self.layers = {
            site: layers[site]
            for site in sites
            if site not in {*FUNCTIONS, *self.scores, *self.inputs}
        }

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        ctx.expect((*self.functions, *self.layers, *self.scores, *self.inputs))
        with (
            self._led(ctx),
            self._fed(x, ctx),
            self._kept(ctx),
            _Functions(ctx, self.functions),
            heard(self.scores.values()) as given,
        ):
            trace = super().trace(x, ctx)
        if BACKWARD in self.functions:
            _lead_around(ctx, trace)
        for site, layer in self.scores.items():
            ctx.through(site, lambda v: v, torch.zeros(len(ctx.keys)))
            trace = Trace((View("final", given[layer]),)) if site in ctx.rules else trace
        return trace

    @contextmanager
    def _led(self, ctx: Context) -> Iterator[None]:
        """Layers whose forward goes through the context, while the network is run."""
        before = {layer: vars(layer).get("forward") for layer in self.layers.values()}
        for site, layer in self.layers.items():
            layer.forward = partial(ctx.through, site, layer.forward)
        try:
            yield
        finally:
            for layer, forward in before.items():
                del layer.forward
                if forward is not None:  # somebody had replaced it before
                    layer.forward = forward

    def _kept(self, ctx: Context) -> AbstractContextManager[object]:
        """Code that was written for no_grad overwrites what a gradient needs, as solvers do their history: let it keep copies."""
        if NO_GRAD not in ctx.rules:
            return nullcontext()
        weights = {
            weight.untyped_storage().data_ptr() for weight in self.net.parameters()
        }  # one copy of these is enough

        def copy(kept: Tensor) -> Tensor:
            return (
                kept.detach()
                if kept.untyped_storage().data_ptr() in weights
                else kept.detach().clone()
            )

        return torch.autograd.graph.saved_tensors_hooks(copy, lambda kept: kept)

    @contextmanager
    def _fed(self, x: Tensor, ctx: Context) -> Iterator[None]:
        """Layers whose input goes through the context as if it had been made of the images there."""

        def before(site: str, module: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...] | None:  # noqa: ARG001
            if not cut_off(given, x):
                return None
            made = given[0]
            return (ctx.through(site, lambda _: made, x.to(made)), *given[1:])

        handles = [
            layer.register_forward_pre_hook(partial(before, site))
            for site, layer in self.inputs.items()
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


def cut_off(given: tuple[Any, ...], x: Tensor) -> bool:
    """Is a layer given something like the images, made of them in a way that no gradient takes?"""
    first = given[0] if given else None
    return (
        isinstance(first, Tensor)
        and first.shape == x.shape
        and first.is_floating_point()
        and not first.requires_grad
    )


@contextmanager
def heard(layers: Iterable[nn.Module]) -> Iterator[dict[nn.Module, Any]]:
    """What these layers give, each the last time, while a network is run."""
    given: dict[nn.Module, Any] = {}
    handles = [
        layer.register_forward_hook(lambda module, _, out: given.update({module: out}))
        for layer in layers
    ]
    try:
        yield given
    finally:
        for handle in handles:
            handle.remove()


class Stateless(Plain):
    """A network that changes while it is used, asked each time as it was when it was handed over; opened at `sites`."""

    def __init__(
        self,
        net: nn.Module,
        sites: tuple[str, ...] = (),
        *,
        random: bool = False,
        coupled: bool = False,
    ) -> None:
        super().__init__(net, random=random, coupled=coupled)
        self.sites = sites

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        return Instrumented(
            copied(self.net), self.sites, random=self.random, coupled=self.coupled
        ).trace(x, ctx)


class _Functions(TorchFunctionMode):
    """Calls of torch, some of them through the context."""

    def __init__(self, ctx: Context, sites: frozenset[str]) -> None:
        super().__init__()
        self.ctx = ctx
        self.sites = sites
        self.recording = torch.is_grad_enabled()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch._C._set_grad_enabled and NO_GRAD in self.sites:
            return self._recording(func, *args)
        name = getattr(func, "__name__", "")
        first = args[0] if args else None
        if not isinstance(first, Tensor):
            return func(*args, **kwargs)
        if name in _FLAT and f"torch.{name}" in self.sites and first.is_floating_point():
            return self.ctx.through(f"torch.{name}", lambda v: func(v, *args[1:], **kwargs), first)
        out = func(*args, **kwargs)
        made = isinstance(out, Tensor) and first.is_floating_point() and not out.is_floating_point()
        if made and f"torch.{name}" in self.sites:
            out._came_from = _origin(name, func, args, kwargs)
        came_from = getattr(first, "_came_from", None)
        if (
            name in _FLOATS
            and came_from is not None
            and isinstance(out, Tensor)
            and out.is_floating_point()
        ):
            site, source, again = came_from
            return self.ctx.through(site, lambda v: func(again(v), *args[1:], **kwargs), source)
        return out

    def _recording(self, func: Any, wanted: bool) -> None:
        """Whether gradients are recorded is the attacker's choice: with a rule here, the network cannot switch it off."""
        self.ctx.through(NO_GRAD, lambda v: v, torch.zeros(len(self.ctx.keys)))
        func(wanted or (self.recording and NO_GRAD in self.ctx.rules))


def _lead_around(ctx: Context, trace: Trace) -> None:
    """With a rule at the site, backward passes that are written by hand hand on what they are given."""
    if written := list(_written(trace)):
        ctx.through(BACKWARD, lambda v: v, torch.zeros(len(ctx.keys)))
    for node in written if BACKWARD in ctx.rules else ():
        node.register_hook(_handed_on)


def _written(trace: Trace) -> Iterator[torch.autograd.graph.Node]:
    """The nodes of the graph behind the answers whose backward pass is the network's own."""
    pending = [view.logits.grad_fn for view in trace.views]
    known = set()
    while pending:
        node = pending.pop()
        if node is None or node in known:
            continue
        known.add(node)
        pending.extend(following for following, _ in node.next_functions)
        if isinstance(node, torch.autograd.function.BackwardCFunction):
            yield node


def _handed_on(
    given_back: tuple[Tensor | None, ...], given: tuple[Tensor, ...]
) -> tuple[Tensor | None, ...] | None:
    first = given_back[0]
    return (
        (given[0], *given_back[1:]) if first is not None and first.shape == given[0].shape else None
    )


def _origin(name: str, func: Any, args: Any, kwargs: Any) -> tuple[str, Tensor, Any]:
    """(site, tensor, function): the tensor from which a function without a slope made the result."""
    first = args[0]
    rest = args[1:]
    if name in _WHOLE:
        return f"torch.{name}", first, lambda v: func(v, *rest, **kwargs)
    other = rest[0]
    turn = _STEPS[name]
    shifted = turn * (first - other)
    return f"torch.{name}", shifted, lambda v: func(turn * v, 0)
