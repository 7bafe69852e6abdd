"""Networks with replaceable scales and shifts of batch normalization, shared or one set per row."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm


class Norm(nn.Module):
    """y = weight (x - mean) / sqrt(var + eps) + bias with the statistics of training.

    `weight` and `bias` are [C], or [N, C] with one set per row.

    Args:
        source: The batch normalization to replace; its tensors are shared.
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, source: _BatchNorm) -> None:
        super().__init__()
        self.weight = source.weight
        self.bias = source.bias
        self.eps = source.eps
        self.register_buffer("running_mean", source.running_mean)
        self.register_buffer("running_var", source.running_var)

    def forward(self, x: Tensor) -> Tensor:
        mean, var = self.statistics(x)
        scale = self.weight * (var + self.eps).rsqrt()  # [C] or [N, C]
        shift = self.bias - mean * scale
        ones = [1] * (x.ndim - 2)
        return torch.addcmul(
            shift.view(-1, x.shape[1], *ones), x, scale.view(-1, x.shape[1], *ones)
        )

    def statistics(self, x: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        """Return mean and variance, [C] each."""
        return self.running_mean, self.running_var


class BatchNorm(Norm):
    """Normalization by the statistics of the batch, mixed with those of training.

    Args:
        source: The batch normalization to replace; its tensors are shared.
        prior: The statistics of training count as this many examples.
    """

    def __init__(self, source: _BatchNorm, prior: float = 0.0) -> None:
        super().__init__(source)
        self.prior = prior

    def statistics(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and variance, [C] each."""
        rest = [d for d in range(x.ndim) if d != 1]
        mean = x.mean(rest)
        var = x.var(rest, unbiased=False)
        share = self.prior / (self.prior + len(x))
        return torch.lerp(mean, self.running_mean, share), torch.lerp(var, self.running_var, share)


class AdjustableNet:
    """A frozen network as a function of its input and of the scales and shifts of batch norm.

    The weights are shared with the given network, which is not changed. Parameters have the same
    names as in that network.

    Args:
        net: A network with batch normalization.
        layer: Builds the replacement of a batch normalization.
        training: Whether the other layers, such as dropout, are in train mode.

    Raises:
        ValueError: The network has no batch normalization with scale, shift and running statistics.
    """

    def __init__(
        self, net: nn.Module, layer: Callable[[_BatchNorm], Norm], *, training: bool = False
    ) -> None:
        shared = {id(t): _frozen(t) for t in (*net.parameters(), *net.buffers())}
        self.net = _replace_norms(copy.deepcopy(net, shared), layer).train(training)
        layers = [name for name, module in self.net.named_modules() if isinstance(module, Norm)]
        if not layers:
            raise ValueError(
                f"{type(net).__name__} has no batch normalization with scale, shift and running "
                "statistics, so nothing can be adapted. Use a network that has some."
            )
        self.names = tuple(f"{layer}.{name}" for layer in layers for name in ("weight", "bias"))
        self.random = any(
            isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0
            for module in self.net.modules()
        )

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        """The original scales and shifts, [C] each."""
        return tuple(self.net.get_parameter(name).detach() for name in self.names)

    def __call__(self, x: Tensor, parameters: Sequence[Tensor]) -> Tensor:
        """Return the output for x [N, ...] with these scales and shifts, [C] or [N, C] each."""
        return cast(
            Tensor, functional_call(self.net, dict(zip(self.names, parameters, strict=True)), (x,))
        )


def _frozen(t: Tensor) -> Tensor:
    return nn.Parameter(t.detach(), requires_grad=False) if isinstance(t, nn.Parameter) else t


def _replace_norms(net: nn.Module, layer: Callable[[_BatchNorm], Norm]) -> nn.Module:
    done: dict[int, Norm] = {}  # a layer that is used twice stays one layer
    for module in list(net.modules()):
        for name, child in module.named_children():
            if isinstance(child, _BatchNorm) and child.affine and child.track_running_stats:
                setattr(module, name, done.setdefault(id(child), layer(child)))
    return net
