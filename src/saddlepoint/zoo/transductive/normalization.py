"""Networks whose batch normalization can be handed other scales and shifts, one set for all rows or one for each."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm


class Norm(nn.Module):
    """y = weight (x - mean) / sqrt(var + eps) + bias with the statistics of training; weight and bias [C], or [N, C] row by row."""

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
        return self.running_mean, self.running_var


class BatchNorm(Norm):
    """The same with statistics of the batch, to which those of training are added as if they came from `prior` more examples."""

    def __init__(self, source: _BatchNorm, prior: float = 0.0) -> None:
        super().__init__(source)
        self.prior = prior

    def statistics(self, x: Tensor) -> tuple[Tensor, Tensor]:
        rest = [d for d in range(x.ndim) if d != 1]
        mean = x.mean(rest)
        var = x.var(rest, unbiased=False)
        share = self.prior / (self.prior + len(x))
        return torch.lerp(mean, self.running_mean, share), torch.lerp(var, self.running_var, share)


class Adjustable:
    """A network, frozen and in a mode of its own, as a function of its input and of the scales and shifts of its normalization.

    The weights are shared with the given network, which is not touched. Parameters of a layer are named as in that network.
    """

    def __init__(
        self, net: nn.Module, layer: Callable[[_BatchNorm], Norm], *, training: bool = False
    ) -> None:
        known = {id(t): _frozen(t) for t in (*net.parameters(), *net.buffers())}
        self.net = _replaced(copy.deepcopy(net, known), layer).train(training)
        layers = [name for name, module in self.net.named_modules() if isinstance(module, Norm)]
        if not layers:
            raise ValueError(
                f"{type(net).__name__} has no batch normalization with scale, shift and running statistics: there is nothing to "
                "adapt. Use a network that has some."
            )
        self.names = tuple(f"{layer}.{name}" for layer in layers for name in ("weight", "bias"))
        self.random = any(
            isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0
            for module in self.net.modules()
        )

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        """The scales and shifts that it was given with, [C] each."""
        return tuple(self.net.get_parameter(name).detach() for name in self.names)

    def __call__(self, x: Tensor, parameters: Sequence[Tensor]) -> Tensor:
        return cast(
            Tensor, functional_call(self.net, dict(zip(self.names, parameters, strict=True)), (x,))
        )


def _frozen(t: Tensor) -> Tensor:
    return nn.Parameter(t.detach(), requires_grad=False) if isinstance(t, nn.Parameter) else t


def _replaced(net: nn.Module, layer: Callable[[_BatchNorm], Norm]) -> nn.Module:
    done: dict[int, Norm] = {}  # a layer that is used twice stays one layer
    for module in list(net.modules()):
        for name, child in module.named_children():
            if isinstance(child, _BatchNorm) and child.affine and child.track_running_stats:
                setattr(module, name, done.setdefault(id(child), layer(child)))
    return net
