"""Control flow inside modules of TorchScript, which cannot be observed while they run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

# Nodes that choose what runs; their first input is the condition or the number of repetitions.
_CHOICES = ("prim::If", "prim::Loop")
# Nodes that make a number of a tensor.
_TO_NUMBER = (
    "aten::Bool",
    "aten::Float",
    "aten::Int",
    "aten::item",
    "aten::is_nonzero",
    "aten::equal",
    "aten::FloatImplicit",
    "aten::IntImplicit",
    "aten::ScalarImplicit",
)


def decides_by_values(net: nn.Module) -> bool:
    """Whether code of TorchScript inside a net chooses by numbers from tensors what it runs.

    Conditions on shapes, options and constants do not count.
    """
    scripted = [one for one in net.modules() if isinstance(one, torch.jit.ScriptModule)]
    frozen = [one for one in getattr(net, "frozen", ()) if hasattr(one, "inlined_graph")]
    return any(_graph_decides(one) for one in (*scripted, *frozen))


def _graph_decides(module: Any) -> bool:
    try:
        graph = module.inlined_graph
    except (AttributeError, RuntimeError):  # a part without a forward method
        return False
    for node in _nodes(graph):
        if node.kind() in _CHOICES:
            conditions = list(node.inputs())[: 2 if node.kind() == "prim::Loop" else 1]
            if any(_from_tensor(value) for value in conditions):
                return True
    return False


def _nodes(block: Any) -> Iterator[Any]:
    """All nodes of a graph, also those in blocks of other nodes."""
    for node in block.nodes():
        yield node
        for inner in node.blocks():
            yield from _nodes(inner)


def _from_tensor(value: Any) -> bool:
    """Whether a number was computed from the entries of a tensor."""
    pending = [value]
    visited: set[str] = set()
    while pending:
        current = pending.pop()
        node = current.node()
        if current.debugName() in visited or node.kind() == "prim::Param":
            continue
        visited.add(current.debugName())
        tensors = [_is_tensor(one) for one in node.inputs()]
        if any(tensors) and node.kind() in _TO_NUMBER:
            return True
        pending += [one for one in node.inputs() if not _is_tensor(one)]
    return False


def _is_tensor(value: Any) -> bool:
    return isinstance(value.type(), torch.TensorType)
