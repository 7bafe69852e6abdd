"""Sites inside a net that names none: layers that lose gradients, and torch functions without one.

All changes to a net are undone after each call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from saddlepoint.audits.target.copy import copy_target
from saddlepoint.audits.target.hooks import installed, is_detached_image, record_outputs
from saddlepoint.audits.target.transforms import outside_transforms
from saddlepoint.audits.target.wrappers import connected
from saddlepoint.defenses import Context, Plain, Trace, View

# Functions of one tensor with a zero gradient, or with none.
_FLAT = ("sign", "round", "floor", "ceil", "trunc", "heaviside", "detach")
# Comparisons a > b: the sign of a in the difference that is compared with zero.
_COMPARISONS = {"gt": 1, "ge": 1, "lt": -1, "le": -1}
_INTEGER_CASTS = ("byte", "int", "long", "short", "to", "type")
_FLOAT_CASTS = ("float", "double", "half", "to", "type", "type_as")
NO_GRAD = "torch.no_grad"
BACKWARD = "torch.autograd.Function"
SCORES = "scores of "  # followed by the name of a layer
INPUT = "input of "  # followed by the name of a layer
FUNCTIONS = (
    *(f"torch.{name}" for name in (*_FLAT, *_COMPARISONS, *_INTEGER_CASTS)),
    NO_GRAD,
    BACKWARD,
)


class Instrumented(Plain):
    """A net with sites. Values are those of the net; without a rule at a site gradients are, too.

    A rule such as `BPDA()` at a site replaces its backward pass (Athalye et al. 2018, Sec. 4.1).
    Sites are:

    - the name of a layer: the layer.
    - `torch.NAME`, one of `FUNCTIONS`: all calls of a torch function. Comparisons and casts to
      integers end where their result is converted to floating point again.
    - `torch.no_grad`: with a rule, gradients are recorded where the net disables them.
    - `torch.autograd.Function`: with a rule, every custom backward pass becomes the identity, if
      its input gradient has the shape of its output gradient.
    - `scores of LAYER`: with a rule, the output of this layer is the output of the net.
    - `input of LAYER`: all steps that compute the input of this layer from the images, possibly
      outside torch. It applies if the input has the shape of the images, or of the next few of
      them, and no gradient.

    Args:
        net: the net.
        sites: names of sites.
        random: whether outputs are randomized.
        coupled: whether rows of a batch influence each other.
    """

    def __init__(
        self, net: nn.Module, sites: tuple[str, ...], *, random: bool = False, coupled: bool = False
    ) -> None:
        super().__init__(net, random=random, coupled=coupled)
        layers = dict(net.named_modules())
        self.functions = frozenset(site for site in sites if site in FUNCTIONS)
        self.scores: dict[str, nn.Module] = {}
        self.inputs: dict[str, nn.Module] = {}
        self.layers: dict[str, nn.Module] = {}
        for site in sites:
            if site.startswith(SCORES):
                self.scores[site] = layers[site.removeprefix(SCORES)]
            elif site.startswith(INPUT):
                self.inputs[site] = layers[site.removeprefix(INPUT)]
            elif site not in FUNCTIONS:
                self.layers[site] = layers[site]

    def trace(self, x: Tensor, ctx: Context) -> Trace:
        ctx.expect((*self.functions, *self.layers, *self.scores, *self.inputs))
        with (
            self._layer_sites(ctx),
            self._input_sites(x, ctx),
            self._saved_tensors(ctx),
            _FunctionSites(ctx, self.functions),
            record_outputs(self.scores.values()) as outputs,
        ):
            trace = super().trace(x, ctx)
        if BACKWARD in self.functions:
            _replace_custom_backward(ctx, trace)
        for site, layer in self.scores.items():
            _pass(ctx, site)
            if site in ctx.rules:
                trace = Trace((View("final", outputs[layer]),))
        return connected(trace, x) if ctx.rules else trace

    @contextmanager
    def _layer_sites(self, ctx: Context) -> Iterator[None]:
        """Replace the `forward` of layers by calls through the context."""
        before = {layer: vars(layer).get("forward") for layer in self.layers.values()}
        for site, layer in self.layers.items():
            layer.forward = partial(ctx.through, site, layer.forward)
        try:
            yield
        finally:
            for layer, forward in before.items():
                del layer.forward
                if forward is not None:  # the user had set `forward` on the instance
                    layer.forward = forward

    @contextmanager
    def _input_sites(self, x: Tensor, ctx: Context) -> Iterator[None]:
        """Replace detached images by the result of a site that maps the images to them.

        A layer that gets the images in parts gets them in their order.
        """
        done = dict.fromkeys(self.inputs, 0)

        def before(site: str, _: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
            first = inputs[0] if inputs else None
            if not isinstance(first, Tensor) or not first.ndim or not len(first):
                return None
            rows = len(first)
            images = x[done[site] : done[site] + rows]
            if not is_detached_image(inputs, images):
                return None
            done[site] = (done[site] + rows) % len(x)
            result = ctx.through(site, partial(_replaced, first), images.to(first))
            return (result, *inputs[1:])

        hooks = {site: partial(before, site) for site in self.inputs}
        with installed(self.inputs[s].register_forward_pre_hook(hook) for s, hook in hooks.items()):
            yield

    def _saved_tensors(self, ctx: Context) -> AbstractContextManager[object]:
        """Save copies of tensors for the backward pass if gradients are recorded under no_grad.

        Code written for no_grad overwrites tensors in place that a gradient needs; solvers do so
        with their history. Weights are not overwritten, so they are not copied.
        """
        if NO_GRAD not in ctx.rules:
            return nullcontext()
        weights = {weight.untyped_storage().data_ptr() for weight in self.net.parameters()}

        def pack(saved: Tensor) -> Tensor:
            saved = saved.detach()
            return saved if saved.untyped_storage().data_ptr() in weights else saved.clone()

        return torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved)


class Stateless(Plain):
    """A net that changes during use: each call runs an instrumented copy in the initial state."""

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
        net = copy_target(self.net)
        copy = Instrumented(net, self.sites, random=self.random, coupled=self.coupled)
        return copy.trace(x, ctx)


class _Source(NamedTuple):
    """How a function without a gradient computed an integer or boolean tensor."""

    site: str
    tensor: Tensor  # a floating-point tensor
    fn: Callable[[Tensor], Tensor]  # from that tensor to the result


class _FunctionSites(TorchFunctionMode):
    """Runs torch functions that are sites through the context."""

    def __init__(self, ctx: Context, sites: frozenset[str]) -> None:
        super().__init__()
        self.ctx = ctx
        self.sites = sites
        self.gradients_enabled = torch.is_grad_enabled()

    @outside_transforms
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch._C._set_grad_enabled and NO_GRAD in self.sites:
            return self._set_grad_enabled(func, *args)
        name = getattr(func, "__name__", "")
        first = args[0] if args else None
        if not isinstance(first, Tensor):
            return func(*args, **kwargs)
        if name in _FLAT and f"torch.{name}" in self.sites and first.is_floating_point():
            return self.ctx.through(f"torch.{name}", lambda v: func(v, *args[1:], **kwargs), first)
        out = func(*args, **kwargs)
        if not isinstance(out, Tensor):
            return out
        to_integer = first.is_floating_point() and not out.is_floating_point()
        if to_integer and f"torch.{name}" in self.sites:
            out._source = _source(name, func, args, kwargs)  # type: ignore[attr-defined]
        source = getattr(first, "_source", None)
        if source is None or name not in _FLOAT_CASTS or not out.is_floating_point():
            return out
        return self.ctx.through(
            source.site, lambda v: func(source.fn(v), *args[1:], **kwargs), source.tensor
        )

    def _set_grad_enabled(self, func: Any, enabled: bool) -> None:
        """With a rule at `torch.no_grad`, the net cannot disable gradients."""
        _pass(self.ctx, NO_GRAD)
        func(enabled or (self.gradients_enabled and NO_GRAD in self.ctx.rules))


def _source(name: str, func: Any, args: Any, kwargs: Any) -> _Source:
    """The source of the result of a cast to integers or of a comparison."""
    first = args[0]
    rest = args[1:]
    if name in _INTEGER_CASTS:
        return _Source(f"torch.{name}", first, lambda v: func(v, *rest, **kwargs))
    sign = _COMPARISONS[name]
    difference = sign * (first - second_argument(args, kwargs))
    return _Source(f"torch.{name}", difference, lambda v: func(sign * v, 0))


def second_argument(args: Any, kwargs: Any) -> Any:
    """What the first argument of a comparison is compared with."""
    return args[1] if len(args) > 1 else kwargs["other"]


def _pass(ctx: Context, site: str) -> None:
    """Report to the context that a call passed a site that has no tensor of its own."""
    ctx.through(site, lambda v: v, torch.zeros(len(ctx.keys)))


def _replaced(value: Tensor, images: Tensor) -> Tensor:  # noqa: ARG001
    """The value that replaces detached images, as a function of the images."""
    return value


def _replace_custom_backward(ctx: Context, trace: Trace) -> None:
    """With a rule at `torch.autograd.Function`, replace custom backward passes by the identity."""
    nodes = list(_custom_backward_nodes(trace))
    if nodes:
        _pass(ctx, BACKWARD)
    if BACKWARD in ctx.rules:
        for node in nodes:
            node.register_hook(_identity_gradient)


def _custom_backward_nodes(trace: Trace) -> Iterator[torch.autograd.graph.Node]:
    """All nodes with a custom backward pass in the graph of a trace."""
    pending = [view.logits.grad_fn for view in trace.views]
    visited = set()
    while pending:
        node = pending.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        pending.extend(following for following, _ in node.next_functions)
        if isinstance(node, torch.autograd.function.BackwardCFunction):
            yield node


def _identity_gradient(
    input_gradients: tuple[Tensor | None, ...], output_gradients: tuple[Tensor, ...]
) -> tuple[Tensor | None, ...] | None:
    """The output gradient as input gradient; None, which changes nothing, if shapes differ."""
    first = input_gradients[0]
    if first is None or first.shape != output_gradients[0].shape:
        return None
    return (output_gradients[0], *input_gradients[1:])
