"""Batch normalization in eval mode, folded into the convolution or linear layer before it.

gamma (W x + b - mean) / sqrt(var + eps) + beta = W' x + b',   W' = gamma W / sqrt(var + eps).
"""

from __future__ import annotations

import copy
from collections import Counter

from torch import fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_NORMALIZATIONS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def folded(net: nn.Module) -> tuple[nn.Module, int]:
    """A copy of a net with folded batch normalization, and the number of folded layers.

    Where `torch.fx` can trace the net, every normalization that directly follows a layer is
    folded. Elsewhere only neighbors inside an `nn.Sequential` are: nothing is known about the
    order of other layers.

    Args:
        net: a net in eval mode. It is not changed.
    """
    if not any(isinstance(layer, _NORMALIZATIONS) for layer in net.modules()):
        return net, 0  # tracing takes as long as many passes of a small net
    net = copy.deepcopy(net)
    try:
        graph = fx.symbolic_trace(net)
    except Exception:  # control flow that depends on values, or code of the user that cannot run
        return net, _fold_sequential(net)
    return graph, _fold_graph(graph)


def _fold_graph(net: fx.GraphModule) -> int:
    """Fold in place; returns the number of folded layers."""
    layers = dict(net.named_modules())
    uses = Counter(node.target for node in net.graph.nodes if node.op == "call_module")
    count = 0
    for node in list(net.graph.nodes):
        if node.op != "call_module" or not isinstance(layers[node.target], _NORMALIZATIONS):
            continue
        before = node.args[0] if len(node.args) == 1 and not node.kwargs else None
        if not isinstance(before, fx.Node) or before.op != "call_module" or len(before.users) > 1:
            continue
        # A layer that is called several times may be followed by another layer elsewhere.
        fused = _fused(layers[before.target], layers[node.target])
        if fused is None or uses[before.target] > 1:
            continue
        parent, _, name = str(before.target).rpartition(".")
        setattr(net.get_submodule(parent), name, fused)
        layers[before.target] = fused
        node.replace_all_uses_with(before)
        net.graph.erase_node(node)
        count += 1
    net.recompile()
    net.delete_all_unused_submodules()
    return count


def _fold_sequential(net: nn.Module) -> int:
    """Fold neighbors inside each `nn.Sequential` in place; returns the number of folded layers."""
    uses = Counter(id(layer) for one in net.modules() for layer in one.children())
    count = 0
    for sequence in [one for one in net.modules() if type(one) is nn.Sequential]:
        for k in range(len(sequence) - 1):
            shared = uses[id(sequence[k])] > 1 or uses[id(sequence[k + 1])] > 1
            fused = None if shared else _fused(sequence[k], sequence[k + 1])
            if fused is not None:
                sequence[k] = fused
                sequence[k + 1] = nn.Identity()
                count += 1
    return count


def _fused(layer: nn.Module, normalization: nn.Module) -> nn.Module | None:
    """One layer in place of two; None if they cannot be folded."""
    if not isinstance(normalization, _NORMALIZATIONS) or normalization.running_mean is None:
        return None
    if has_hooks(layer) or has_hooks(normalization):
        return None
    if type(layer) in _CONVOLUTIONS:
        return fuse_conv_bn_eval(layer, normalization)  # type: ignore[type-var]
    if type(layer) is nn.Linear:
        return fuse_linear_bn_eval(layer, normalization)
    return None


def has_hooks(layer: nn.Module) -> bool:
    """Whether functions of the user run before or after this layer."""
    return any(
        getattr(layer, name)
        for name in (
            "_forward_hooks",
            "_forward_pre_hooks",
            "_backward_hooks",
            "_backward_pre_hooks",
        )
    )
