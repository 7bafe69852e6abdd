"""Certified lower bounds of the margin over a whole perturbation set.

There are bounds for sequential nets, and for defenses that bound their own margins. They hold in
exact arithmetic; a small slack allows for rounding, which is not tracked through the layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from saddlepoint.attacks.spaces import Ball
from saddlepoint.audits.cells import Job, Measurement, Values
from saddlepoint.audits.diagnostics.layer_bounds import (
    absolute_map,
    is_affine,
    is_monotone,
    layers_of,
    lipschitz_constant,
    supported,
)
from saddlepoint.defenses import Context, Defense, Plain
from saddlepoint.rng import Keys

_SLACK = 1e-5  # of the largest logit


class Box(NamedTuple):
    """All points between two points, entry by entry."""

    low: Tensor
    high: Tensor

    @classmethod
    def around(cls, x: Tensor, space: Ball) -> Box:
        """The smallest box that contains the set around x: |d_i| <= ||d||_p for every p."""
        low = (x - space.radius).clamp(min=space.box[0])
        high = (x + space.radius).clamp(max=space.box[1])
        return cls(low, high)


def interval_margins(net: nn.Sequential, x: Tensor, y: Tensor, space: Ball) -> Tensor:
    """[N] lower bounds of z_y - max_{j != y} z_j by interval arithmetic (Gowal et al. 2018).

    An affine layer maps a center c to W c + b and a half-width r to |W| r. A monotone layer maps
    end points to end points. The last layer is merged into the differences
    z_y - z_j = (w_y - w_j) h + b_y - b_j, which is tighter than two intervals.

    Args:
        net: a net that is `supported`.
        x: images, [N, ...].
        y: labels, [N].
        space: the perturbation set.
    """
    *body, last = layers_of(net)
    head = _linear(last)
    box = Box.around(x, space)
    with torch.no_grad():
        for layer in body:
            box = _image_of(layer, box)
        center = (box.high + box.low) / 2
        half = (box.high - box.low) / 2
        rows = head.weight[y][:, None] - head.weight  # [N, C, H]: w_y - w_j
        bias = head.bias if head.bias is not None else head.weight.new_zeros(len(head.weight))
        at_center = (rows * center[:, None]).sum(2) + bias[y][:, None] - bias
        least = at_center - (rows.abs() * half[:, None]).sum(2)  # [N, C]
    return _least_over_classes(least, y)


def lipschitz_margins(net: nn.Sequential, x: Tensor, y: Tensor, space: Ball) -> Tensor:
    """[N] lower bounds of the margin: min_j z_y - z_j - ||w_y - w_j|| L R.

    R is the Euclidean radius of the set. L bounds the Lipschitz constant of all layers except the
    last by the product of their spectral norms (Szegedy et al. 2014).

    Args:
        net: a net that is `supported`.
        x: images, [N, ...].
        y: labels, [N].
        space: the perturbation set.
    """
    *body, last = layers_of(net)
    head = _linear(last)
    with torch.no_grad():
        constant = 1.0
        inner = x[:1]
        for layer in body:
            constant = constant * lipschitz_constant(layer, inner)
            inner = layer(inner)
        logits = net(x)
        slopes: Tensor = torch.linalg.vector_norm(head.weight[y][:, None] - head.weight, dim=2)
        reach = constant * _euclidean_radius(space, x)
        least: Tensor = logits.gather(1, y[:, None]) - logits - slopes * reach  # [N, C]
    return _least_over_classes(least, y)


@runtime_checkable
class CertifiedDefense(Protocol):
    """A defense that bounds its own margins, such as a monotone equilibrium model."""

    @property
    def certificate(self) -> str: ...  # the method, as shown beside the bound

    def certified_margins(self, logits: Tensor, x: Tensor, y: Tensor, space: Ball) -> Tensor:
        """[N] lower bounds of the margin over the set, given the logits [N, C] at x."""


def certificate_method(defense: Defense, dtype: torch.dtype) -> str | None:
    """How predictions of a defense can be certified; None if they cannot.

    Args:
        defense: the defense.
        dtype: the type of its images; half precision is too coarse for the slack.
    """
    net = getattr(defense, "net", None)
    deterministic = not defense.random and not defense.coupled
    plain = type(defense) is Plain and deterministic and torch.finfo(dtype).bits >= 32
    if plain and isinstance(net, nn.Sequential) and supported(net):
        return "interval and Lipschitz bounds, layer by layer"
    return defense.certificate if isinstance(defense, CertifiedDefense) else None


def certified(defense: Defense, x: Tensor, y: Tensor, space: Ball) -> Tensor:
    """[N] bool: the prediction is correct, and no point of the set changes it.

    Args:
        defense: a defense with a `certificate_method`.
        x: images, [N, ...].
        y: labels, [N].
        space: the perturbation set.
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
    """Images with a correct prediction that no point of the set changes."""

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


def _image_of(layer: nn.Module, box: Box) -> Box:
    """A box that contains the outputs of a layer for all points of a box."""
    if is_monotone(layer):
        return Box(layer(box.low), layer(box.high))
    if not is_affine(layer):
        raise TypeError(f"there is no interval bound for {type(layer).__name__}.")
    center = layer((box.low + box.high) / 2)
    half = absolute_map(layer, (box.high - box.low) / 2)
    return Box(center - half, center + half)


def _least_over_classes(differences: Tensor, y: Tensor) -> Tensor:
    """[N] the least difference [N, C] over all classes except the label."""
    return differences.scatter(1, y[:, None], torch.inf).amin(1)


def _linear(head: nn.Module) -> nn.Linear:
    if not isinstance(head, nn.Linear):
        raise TypeError(f"the last layer must be nn.Linear, got {type(head).__name__}.")
    return head


def _euclidean_radius(space: Ball, x: Tensor) -> float:
    """The largest Euclidean norm in the set: radius d^(1/2 - 1/p) for p >= 2, else the radius."""
    return float(space.radius * x[0].numel() ** max(0.5 - 1 / space.p, 0.0))
