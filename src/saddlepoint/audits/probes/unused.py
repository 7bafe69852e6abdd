"""Probes whether a model has layers that no image reaches, and decides in Python what it runs.

Such a model may run these layers for images that an attacker finds. No gradient leads there, and a
query search finds them only by chance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from saddlepoint.audits.probes.probe_target import ProbeTarget
from saddlepoint.audits.probes.traits import Trait, TraitName, absent, present, unmeasured
from saddlepoint.audits.target.hooks import installed
from saddlepoint.audits.target.transforms import unwrapped
from saddlepoint.phrases import count, names

# Functions by which values of tensors reach Python code.
_READS = frozenset(
    ["numpy", "item", "tolist", "__array__", "__bool__", "__float__", "__int__", "__index__"]
)


class _Uses(TorchFunctionMode):
    """Records which tensors functions receive, and which values reach Python code."""

    def __init__(self) -> None:
        super().__init__()
        self.storages: set[int] = set()
        self.reads: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in _READS and args and isinstance(args[0], Tensor):
            self.reads.append(unwrapped(args[0]).detach().clone())
        for value in (*args, *kwargs.values()):
            for tensor in value if isinstance(value, list | tuple) else (value,):
                if isinstance(tensor, Tensor):
                    self.storages.add(unwrapped(tensor).untyped_storage().data_ptr())
        return func(*args, **kwargs)


def probe_unused(target: ProbeTarget) -> Iterator[Trait]:
    """Layers with parameters that were used for no image, in a model that reads values."""
    name = TraitName.UNUSED_LAYERS
    if not target.opaque or isinstance(target.module, torch.jit.ScriptModule):
        yield unmeasured(name, "the target is not a net whose layers can be observed")
        return
    fresh = target.fresh_copy()
    net = getattr(fresh.defense, "net", None)
    if not isinstance(net, nn.Module):
        yield unmeasured(name, "the target is not a net whose layers can be observed")
        return
    near = target.space.sample(target.x, target.keys(13))
    # No value of an image decides what a pure function runs: it uses the same layers for all.
    batches = (target.x, near, target.other_images)[: 1 if target.pure else 3]
    uses = [_Uses() for _ in batches]
    called: set[str] = set()
    layers = dict(net.named_modules())
    with installed(m.register_forward_pre_hook(_marker(n, called)) for n, m in layers.items()):
        for images, use in zip(batches, uses, strict=True):
            with torch.no_grad(), use:
                fresh.query_unadapted(images)
    storages = set[int]().union(*(use.storages for use in uses))
    unused = tuple(_outermost(n for n, m in layers.items() if _is_unused(n, m, called, storages)))
    if not unused:
        yield absent(name, len(uses) * len(target), "all layers are used")
    elif target.pure or _same(
        uses[0].reads, uses[1].reads
    ):  # Python code reads nothing that depends on images
        evidence = f"{names(unused)} are not used, and nothing decides it"
        yield absent(name, len(uses) * len(target), evidence)
    else:
        tried = count(3 * len(target), "image")
        yield present(name, f"none of {tried} uses {names(unused)}", places=unused)


def _marker(name: str, called: set[str]) -> Callable[[nn.Module, Any], None]:
    # A closure: a net that copies itself copies its hooks, but not the set that they fill.
    def mark(module: nn.Module, inputs: Any) -> None:  # noqa: ARG001
        called.add(name)

    return mark


def _same(first: list[Tensor], second: list[Tensor]) -> bool:
    pairs = zip(first, second, strict=False)
    return len(first) == len(second) and all(torch.equal(a, b) for a, b in pairs)


def _is_unused(name: str, module: nn.Module, called: set[str], storages: set[int]) -> bool:
    parameters = list(module.parameters())
    if not name or not parameters or any(c == name or c.startswith(f"{name}.") for c in called):
        return False
    return not any(p.untyped_storage().data_ptr() in storages for p in parameters)


def _outermost(found: Iterator[str]) -> Iterator[str]:
    """Layers without those inside them; outer layers come first."""
    kept: list[str] = []
    for name in found:
        if not any(name.startswith(f"{outer}.") for outer in kept):
            kept.append(name)
            yield name
