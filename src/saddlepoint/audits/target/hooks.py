"""Observation of a net while it runs: layer inputs and outputs, gradients, calls and operations.

Everything is installed by a context manager and removed at its end. Values are never changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry
from torch.utils.hooks import RemovableHandle

from saddlepoint.audits.target.transforms import in_transform, outside_transforms
from saddlepoint.gradients import Rule

_MOST = 0.5  # fraction of rows


@contextmanager
def installed(handles: Iterable[RemovableHandle]) -> Iterator[None]:
    """Remove hooks at the end."""
    handles = tuple(handles)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def hookable(modules: Iterable[nn.Module]) -> list[nn.Module]:
    """Modules that accept hooks: those of TorchScript do not."""
    return [module for module in modules if not isinstance(module, torch.jit.ScriptModule)]


@contextmanager
def record_outputs(layers: Iterable[nn.Module]) -> Iterator[dict[nn.Module, Any]]:
    """The last output of each of these layers."""
    outputs: dict[nn.Module, Any] = {}

    def after(module: nn.Module, inputs: tuple[Any, ...], out: Any) -> None:  # noqa: ARG001
        outputs[module] = out

    with installed([layer.register_forward_hook(after) for layer in hookable(layers)]):
        yield outputs


def is_detached_image(inputs: tuple[Any, ...], x: Tensor) -> bool:
    """Whether the first input of a layer has the shape of the images, but no gradient.

    Args:
        inputs: all inputs of the layer.
        x: the images, [N, ...].
    """
    first = inputs[0] if inputs else None
    return (
        isinstance(first, Tensor)
        and first.shape == x.shape
        and first.is_floating_point()
        and not first.requires_grad
        and not in_transform(first)
    )


@contextmanager
def record_detached_images(net: nn.Module, x: Tensor) -> Iterator[dict[str, Tensor]]:
    """The first detached image of each layer inside a net, by the name of the layer.

    Calls with gradients disabled are ignored: no input has a gradient there.
    """
    found: dict[str, Tensor] = {}

    def before(name: str, module: nn.Module, inputs: tuple[Any, ...]) -> None:  # noqa: ARG001
        if torch.is_grad_enabled() and is_detached_image(inputs, x):
            found.setdefault(name, inputs[0])

    names = {module: name for name, module in net.named_modules() if name}
    with installed(m.register_forward_pre_hook(partial(before, names[m])) for m in hookable(names)):
        yield found


@dataclass
class GradientFlow:
    """The gradients at output and input of one call of a layer or site."""

    keeps_shape: bool  # the output has the shape of the input
    detached: bool  # the output requires no gradient
    at_output: list[Tensor] = field(default_factory=list)
    at_input: list[Tensor] = field(default_factory=list)

    @classmethod
    def record(cls, entered: Tensor, out: Tensor) -> GradientFlow:
        """Record the gradients of the next backward pass."""
        flow = cls(entered.shape == out.shape, not out.requires_grad)
        if not flow.detached:
            entered.register_hook(flow.at_input.append)  # type: ignore[no-untyped-call]
            out.register_hook(flow.at_output.append)  # type: ignore[no-untyped-call]
        return flow

    @property
    def lost(self) -> bool:
        """Most rows have a gradient at the output, but none, zeros or NaN at the input."""
        if self.detached:
            return True
        if not self.at_output:
            return False
        after = self.at_output[0]
        before = self.at_input[0] if self.at_input else torch.zeros_like(after)
        # An output may have one number per row, so rows are flattened with reshape.
        arrived = (after != 0).reshape(len(after), -1).any(1)
        rows = before.reshape(len(before), -1)
        useless = ~rows.isfinite().all(1) | (rows == 0).all(1)
        return bool(arrived.any()) and float((useless & arrived).sum()) > _MOST * float(
            arrived.sum()
        )


@dataclass(frozen=True)
class RecordFlow(Rule):
    """The exact gradient at a site, recorded."""

    flows: list[GradientFlow]

    def apply(self, fn: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        if not (torch.is_grad_enabled() and x.requires_grad) or in_transform(x):
            return fn(x)
        entered = x.view_as(x)
        out = fn(entered)
        self.flows.append(GradientFlow.record(entered, out))
        return out


@contextmanager
def record_flows(names: Mapping[nn.Module, str]) -> Iterator[dict[str, list[GradientFlow]]]:
    """The gradient flows of every call of these layers that maps one tensor to one tensor."""
    flows: dict[str, list[GradientFlow]] = {name: [] for name in names.values()}
    entered: dict[nn.Module, Tensor] = {}

    def before(module: nn.Module, inputs: tuple[object, ...]) -> tuple[object, ...] | None:
        entered.pop(module, None)
        x = inputs[0] if len(inputs) == 1 else None
        # A net that copies itself copies the hooks, too; layers of the copy have no names.
        if module not in names or not (isinstance(x, Tensor) and x.requires_grad):
            return None
        if in_transform(x):
            return None
        entered[module] = x.view_as(x)
        return (entered[module],)

    def after(module: nn.Module, inputs: tuple[object, ...], out: object) -> None:  # noqa: ARG001
        x = entered.pop(module, None)
        if isinstance(out, Tensor) and x is not None:
            flows[names[module]].append(GradientFlow.record(x, out))

    handles = []
    for module in hookable(names):
        handles.append(module.register_forward_pre_hook(before))
        handles.append(module.register_forward_hook(after))
    with installed(handles):
        yield flows


@dataclass
class CallCount:
    """Rows with which a module was called."""

    rows: int = 0
    with_gradients: int = 0  # of these, rows of calls with gradients enabled


@contextmanager
def count_calls(module: nn.Module) -> Iterator[CallCount]:
    """Count the rows with which a module is called."""
    count = CallCount()

    def before(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:  # noqa: ARG001
        count.rows += len(inputs[0])
        count.with_gradients += len(inputs[0]) * torch.is_grad_enabled()

    with installed(one.register_forward_pre_hook(before) for one in hookable([module])):
        yield count


class CountDifferentiations(TorchFunctionMode):
    """Counts calls of torch.autograd.grad and of backward passes."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    @outside_transforms
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func in (torch.autograd.grad, torch.autograd.backward, Tensor.backward)
        return func(*args, **(kwargs or {}))


class CountOperations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up the floating-point operations of matrix products and convolutions."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # By default the first operation under a mode imports the compiler of torch, which takes
        # longer than all probes of a small net. Compiled code does not run compiled under a mode.
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func._overloadpacket in flop_registry:
            self.total += flop_registry[func._overloadpacket](*args, **(kwargs or {}), out_val=out)
        return out
