"""Bounds of single layers: images of intervals, and Lipschitz constants."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

_MONOTONE = (
    nn.ReLU,
    nn.Flatten,
    nn.MaxPool2d,
    nn.AvgPool2d,
    nn.AdaptiveAvgPool2d,
    nn.Identity,
    nn.Dropout,
    nn.Dropout2d,
)
_AFFINE = (nn.Linear, nn.Conv2d, nn.BatchNorm1d, nn.BatchNorm2d)


@runtime_checkable
class ChannelAffine(Protocol):
    """A layer that scales and shifts each channel, such as input normalization."""

    def channel_scales(self) -> Tensor:
        """[channels] the scale of each channel."""


def supported(net: nn.Sequential) -> bool:
    """Whether every layer has known bounds and the last one is linear."""
    layers = layers_of(net)
    if not layers or not isinstance(layers[-1], nn.Linear):
        return False
    return all(_has_bounds(layer) and _is_unmodified(layer) for layer in layers)


def layers_of(net: nn.Sequential) -> list[nn.Module]:
    """All layers of a net, with nested nets flattened."""
    layers: list[nn.Module] = []
    for layer in net:
        layers += layers_of(layer) if isinstance(layer, nn.Sequential) else [layer]
    return layers


def is_monotone(layer: nn.Module) -> bool:
    """Whether no output of a layer decreases when an input increases."""
    return isinstance(layer, _MONOTONE)


def is_affine(layer: nn.Module) -> bool:
    """Whether a layer is an affine map."""
    return isinstance(layer, (*_AFFINE, ChannelAffine))


def absolute_map(layer: nn.Module, half: Tensor) -> Tensor:
    """|A| half, for the linear part A of an affine layer."""
    if isinstance(layer, nn.Linear):
        return half @ layer.weight.abs().T
    if isinstance(layer, nn.Conv2d):
        out: Tensor = layer._conv_forward(half, layer.weight.abs(), None)
        return out
    return half * _channel_scales(layer).abs().view(1, -1, *[1] * (half.ndim - 2))


def lipschitz_constant(layer: nn.Module, x: Tensor) -> float:
    """An upper bound of the Euclidean Lipschitz constant of a layer.

    Args:
        layer: a supported layer.
        x: an input, [1, ...], which gives the shape.
    """
    if isinstance(layer, nn.Linear):
        return float(torch.linalg.matrix_norm(layer.weight, 2))
    if isinstance(layer, nn.Conv2d):
        return _norm_of_nonnegative_map(partial(absolute_map, layer), x)
    # Windows that overlap, or are smaller at edges, make the norm of some vectors larger.
    if isinstance(layer, nn.AvgPool2d | nn.AdaptiveAvgPool2d):
        return _norm_of_nonnegative_map(layer, x)
    if isinstance(layer, nn.MaxPool2d):
        return _max_pool_constant(layer)
    if is_monotone(layer):
        return 1.0
    return float(_channel_scales(layer).abs().amax())


def _has_bounds(layer: nn.Module) -> bool:
    """Whether bounds are known; a subclass may compute anything, so types must match exactly."""
    return type(layer) in _MONOTONE + _AFFINE or isinstance(layer, ChannelAffine)


def _is_unmodified(layer: nn.Module) -> bool:
    """Whether the bounds of its type apply: no hooks, no batch statistics, usual padding."""
    if layer.training or layer._forward_hooks or layer._forward_pre_hooks:
        return False
    match layer:
        case nn.Conv2d():
            return layer.padding_mode == "zeros"
        case nn.BatchNorm1d() | nn.BatchNorm2d():
            return layer.running_var is not None
        case nn.AvgPool2d():
            return layer.divisor_override is None or layer.divisor_override > 0
        case _:
            return True


def _channel_scales(layer: nn.Module) -> Tensor:
    """[channels] the scales of a layer that scales each channel."""
    if isinstance(layer, ChannelAffine):
        return layer.channel_scales()
    assert isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d), "the only other affine layers"
    assert layer.running_var is not None, "batch norm without statistics is not supported"
    scale = (layer.running_var + layer.eps).rsqrt()
    return scale * layer.weight if layer.weight is not None else scale


def _norm_of_nonnegative_map(linear: Callable[[Tensor], Tensor], x: Tensor) -> float:
    """A bound of the spectral norm of a linear map A without negative entries.

    ||A||_2 <= sqrt(||A||_1 ||A||_inf), the largest column sum A^T 1 and the largest row sum A 1.
    """
    with torch.enable_grad():
        ones = torch.ones_like(x, requires_grad=True)
        rows = linear(ones)
        (columns,) = torch.autograd.grad(rows.sum(), ones)
    return float((rows.amax() * columns.amax()).sqrt())


def _max_pool_constant(layer: nn.MaxPool2d) -> float:
    """The square root of the number of windows that contain an input.

    Each of them may have this input as its maximum. Window j contains input
    i = stride j + dilation m for some m < kernel; these m are stride / gcd(stride, dilation) apart.
    """
    windows = 1
    kernels = _pair(layer.kernel_size)
    strides = _pair(layer.stride)
    dilations = _pair(layer.dilation)
    for kernel, stride, dilation in zip(kernels, strides, dilations, strict=True):
        windows *= math.ceil(kernel * math.gcd(stride, dilation) / stride)
    return math.sqrt(windows)


def _pair(size: int | tuple[int, ...]) -> tuple[int, ...]:
    return size if isinstance(size, tuple) else (size, size)
