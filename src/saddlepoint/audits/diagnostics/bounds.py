"""What can be proven: lower bounds on the margin over a whole perturbation set, for small nets and monotone equilibria.

All hold in exact arithmetic; floating-point rounding is allowed for by a small slack, not followed through the layers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from saddlepoint.attacks.spaces import Ball
from saddlepoint.audits.cells import Job, Measurement, Values
from saddlepoint.defenses import Context, Defense, Plain
from saddlepoint.rng import Keys

_SLACK = 1e-5  # of the largest logit
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


class Box(NamedTuple):
    """All points between two."""

    low: Tensor
    high: Tensor

    @classmethod
    def around(cls, x: Tensor, space: Ball) -> Box:
        """The smallest that holds the set: |d_i| <= ||d||_p for every p."""
        return cls(
            (x - space.radius).clamp(min=space.box[0]), (x + space.radius).clamp(max=space.box[1])
        )


def interval_margins(net: nn.Sequential, x: Tensor, y: Tensor, space: Ball) -> Tensor:
    """[N] a lower bound of z_y - max_{j != y} z_j over the set, by interval arithmetic (Gowal et al. 2018).

    Through an affine layer, center c -> W c + b and half-width r -> |W| r; through a monotone one, end points -> end points. The
    last layer is folded into the differences: z_y - z_j = (w_y - w_j) h + b_y - b_j, which is tighter than two intervals.
    """
    *body, last = _layers(net)
    head = _linear(last)
    box = Box.around(x, space)
    with torch.no_grad():
        for layer in body:
            box = _through(layer, box)
        center = (box.high + box.low) / 2
        half = (box.high - box.low) / 2
        rows = head.weight[y][:, None] - head.weight  # [N, C, H]: w_y - w_j
        bias = head.bias if head.bias is not None else head.weight.new_zeros(len(head.weight))
        least = (
            (rows * center[:, None]).sum(2)
            - (rows.abs() * half[:, None]).sum(2)
            + bias[y][:, None]
            - bias
        )  # [N, C]
    return least.scatter(1, y[:, None], torch.inf).amin(1)


def lipschitz_margins(net: nn.Sequential, x: Tensor, y: Tensor, space: Ball) -> Tensor:
    """[N] a lower bound of the margin over the set: z_y - z_j - ||w_y - w_j|| L R, with R the Euclidean radius of the set.

    L, of all layers but the last, is the product of their spectral norms (Szegedy et al. 2014); that of a convolution or an average
    is bounded by sqrt(||A||_1 ||A||_inf).
    """
    *body, head = _layers(net)
    with torch.no_grad():
        steep = 1.0
        inner = x[:1]
        for layer in body:
            steep = steep * _norm(layer, inner)
            inner = layer(inner)
        return _steepest(net(x), y, _linear(head), steep * _euclidean(space, x))


@runtime_checkable
class CertifiedDefense(Protocol):
    """A defense that can bound its own margins, such as a monotone equilibrium model."""

    @property
    def certificate(self) -> str: ...  # the method, as shown beside the bound

    def certified_margins(self, logits: Tensor, x: Tensor, y: Tensor, space: Ball) -> Tensor:
        """[N] lower bounds of the margin over the set, given the logits [N, C] at x."""


@runtime_checkable
class ChannelAffine(Protocol):
    """A layer that scales and shifts each channel, such as input normalization."""

    def channel_scales(self) -> Tensor:
        """[channels] the scale of each channel."""


def certificate_method(defense: Defense, dtype: torch.dtype) -> str | None:
    """How predictions of this defense can be certified; None if they cannot."""
    net = getattr(defense, "net", None)
    deterministic = not defense.random and not defense.coupled
    plain = type(defense) is Plain and deterministic and torch.finfo(dtype).bits >= 32
    if plain and isinstance(net, nn.Sequential) and supported(net):
        return "interval and Lipschitz bounds, layer by layer"
    return defense.certificate if isinstance(defense, CertifiedDefense) else None


def certified(defense: Defense, x: Tensor, y: Tensor, space: Ball) -> Tensor:
    """[N] bool: no point of the set changes the prediction, which is correct.

    Only for a defense with a `certificate_method`.
    """
    if isinstance(defense, CertifiedDefense):
        keys = Keys.of(0, torch.arange(len(x), device=x.device))
        with torch.no_grad():
            logits = defense.respond(x, Context(keys, keep=defense.reads))
        least = defense.certified_margins(logits, x, y, space)
    else:
        net = getattr(defense, "net", None)
        assert isinstance(net, nn.Sequential), "see certificate_method"
        with torch.no_grad():
            logits = net(x)
        interval = interval_margins(net, x, y, space)
        least = torch.maximum(interval, lipschitz_margins(net, x, y, space))
    slack = _SLACK * logits.abs().amax(1).clamp(min=1.0)
    return least > slack


@dataclass(frozen=True)
class Certify(Measurement):
    """Images whose correct prediction no point of the set changes."""

    rows: Tensor
    at_once: int

    @property
    def name(self) -> str:
        return "certified bounds"

    def compute(self, job: Job) -> Values:
        parts = [
            certified(job.defense, job.x[rows], job.y[rows], job.threat.space)
            for rows in torch.split(self.rows, self.at_once)
        ]
        return {"certified": torch.cat(parts).cpu()}


def supported(net: nn.Sequential) -> bool:
    """Is every layer one whose bounds are known, the last one linear?"""
    layers = _layers(net)
    known = all(_known(layer) and not layer.training and _plain(layer) for layer in layers)
    return known and bool(layers) and isinstance(layers[-1], nn.Linear)


def _steepest(z: Tensor, y: Tensor, head: nn.Linear, reach: float) -> Tensor:
    """[N] min over j of z_y - z_j - ||w_y - w_j|| reach."""
    steep: Tensor = torch.linalg.vector_norm(head.weight[y][:, None] - head.weight, dim=2)  # [N, C]
    least: Tensor = z.gather(1, y[:, None]) - z - steep * reach
    return least.scatter(1, y[:, None], torch.inf).amin(1)


def _linear(head: nn.Module) -> nn.Linear:
    if not isinstance(head, nn.Linear):
        raise TypeError(f"the last layer must be nn.Linear, found {type(head).__name__}.")
    return head


def _layers(net: nn.Sequential) -> list[nn.Module]:
    return [
        inner
        for layer in net
        for inner in (_layers(layer) if isinstance(layer, nn.Sequential) else [layer])
    ]


def _plain(layer: nn.Module) -> bool:
    """Is it what its type says? A hook may do anything; statistics of the batch and other paddings have no bound here."""
    match layer:
        case nn.Conv2d():
            usual = layer.padding_mode == "zeros"
        case nn.BatchNorm1d() | nn.BatchNorm2d():
            usual = layer.running_var is not None
        case nn.AvgPool2d():
            usual = layer.divisor_override is None or layer.divisor_override > 0
        case _:
            usual = True
    return usual and not layer._forward_hooks and not layer._forward_pre_hooks


def _through(layer: nn.Module, box: Box) -> Box:
    if isinstance(layer, _MONOTONE):
        return Box(layer(box.low), layer(box.high))
    if not isinstance(layer, (*_AFFINE, ChannelAffine)):
        names = ", ".join(kind.__name__ for kind in _MONOTONE + _AFFINE)
        raise TypeError(f"no interval bound for {type(layer).__name__}; known layers: {names}.")
    center = layer((box.low + box.high) / 2)
    half = _absolute(layer, (box.high - box.low) / 2)
    return Box(center - half, center + half)


def _absolute(layer: nn.Module, half: Tensor) -> Tensor:
    """|A| half, for the linear part A of an affine layer."""
    if isinstance(layer, nn.Linear):
        return half @ layer.weight.abs().T
    if isinstance(layer, nn.Conv2d):
        wide: Tensor = layer._conv_forward(half, layer.weight.abs(), None)
        return wide
    return half * _scales(layer).abs().view(1, -1, *[1] * (half.ndim - 2))


def _scales(layer: nn.Module) -> Tensor:
    """[channels] of a layer that scales each of them."""
    if isinstance(layer, ChannelAffine):
        return layer.channel_scales()
    assert isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d), "the last of the affine layers"
    assert layer.running_var is not None, "without them it is not supported"
    scale = (layer.running_var + layer.eps).rsqrt()
    return scale * layer.weight if layer.weight is not None else scale


def _norm(layer: nn.Module, x: Tensor) -> float:
    """An upper bound of the spectral norm on tensors such as x [1, ...]; of a layer without weights, of its Lipschitz constant."""
    if isinstance(layer, nn.Linear):
        return float(torch.linalg.matrix_norm(layer.weight, 2))
    if isinstance(layer, nn.Conv2d):
        return _sums(partial(_absolute, layer), x)
    if isinstance(
        layer, nn.AvgPool2d | nn.AdaptiveAvgPool2d
    ):  # where windows are smaller at edges, or overlap, some vectors grow
        return _sums(layer, x)
    if isinstance(layer, nn.MaxPool2d):
        return _overlap(layer)
    if isinstance(layer, _MONOTONE):
        return 1.0
    return float(_scales(layer).abs().amax())


def _sums(linear: Callable[[Tensor], Tensor], x: Tensor) -> float:
    """sqrt(||A||_1 ||A||_inf) of a linear map without negative entries: the largest sums of its columns, A^T 1, and rows, A 1."""
    with torch.enable_grad():
        ones = torch.ones_like(x, requires_grad=True)
        rows = linear(ones)
        (columns,) = torch.autograd.grad(rows.sum(), ones)
    return float((rows.amax() * columns.amax()).sqrt())


def _overlap(layer: nn.MaxPool2d) -> float:
    """Each input may be the largest of as many windows as hold it: sqrt of their number.

    Window j holds input i = stride j + dilation m for some m < kernel; such m are stride / gcd(stride, dilation) apart.
    """
    sides = zip(_pair(layer.kernel_size), _pair(layer.stride), _pair(layer.dilation), strict=True)
    return math.sqrt(
        math.prod(
            math.ceil(kernel * math.gcd(stride, dilation) / stride)
            for kernel, stride, dilation in sides
        )
    )


def _pair(size: int | tuple[int, ...]) -> tuple[int, ...]:
    return size if isinstance(size, tuple) else (size, size)


def _euclidean(space: Ball, x: Tensor) -> float:
    """The largest Euclidean length in the set: radius d^(1/2 - 1/p) for p >= 2, radius below."""
    return float(space.radius * x[0].numel() ** max(0.5 - 1 / space.p, 0.0))


def _known(layer: nn.Module) -> bool:
    return type(layer) in _MONOTONE + _AFFINE or isinstance(layer, ChannelAffine)
