"""Gradient steps that a defence takes while it answers, under an attacker's autograd or without it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from saddlepoint.attack.space import Linf, per_example

Objective = Callable[[Tensor], Tensor]  # [N, ...] -> [N], or their total


def slope(objective: Objective, x: Tensor) -> Tensor:
    """d sum objective / dx, with a gradient of its own where gradients are recorded; made all the same where they are not."""
    recording = torch.is_grad_enabled()
    with torch.enable_grad():
        here = x if recording and x.requires_grad else x.detach().requires_grad_()
        value = objective(here).sum()
    return torch.autograd.grad(value, here, create_graph=recording)[0]


def direction(objective: Objective, x: Tensor) -> Tensor:
    """sign(d sum objective / dx): a step function, so its derivative is zero almost everywhere and no second order is kept."""
    with torch.no_grad():
        return slope(objective, x).sign()


def signed_step(x: Tensor, towards: Tensor, size: float | Tensor, center: Tensor, radius: float) -> Tensor:
    """x + size towards, then into the ball of that radius around the center and into [0, 1]; `size` may be one per example."""
    step = per_example(size, x) if isinstance(size, Tensor) else size
    return Linf(radius).project(x + step * towards, center)
