"""Gradient steps that a defence takes while it answers, under an attacker's autograd or without it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from saddlepoint.attack.space import Linf, per_example

Objective = Callable[[Tensor], Tensor]  # [N, ...] -> [N], or their total


def slope(objective: Objective, x: Tensor, *, recorded: bool = True) -> Tensor:
    """d sum objective / dx, also under `no_grad`; where gradients are recorded, and with `recorded`, one that has its own."""
    recording = recorded and torch.is_grad_enabled()
    # A gradient that nobody differentiates is used up at once: an outer checkpoint must not drop what it needs, and run it twice.
    at_hand = nullcontext() if recording else saved_tensors_hooks(Tensor.detach, _unchanged)
    with torch.enable_grad(), at_hand:
        here = x if recording and x.requires_grad else x.detach().requires_grad_()
        return torch.autograd.grad(objective(here).sum(), here, create_graph=recording)[0]


def direction(objective: Objective, x: Tensor) -> Tensor:
    """sign(d sum objective / dx): a step function, so its derivative is zero almost everywhere and no second order is kept."""
    return slope(objective, x, recorded=False).sign()


def signed_step(x: Tensor, towards: Tensor, size: float | Tensor, center: Tensor, radius: float) -> Tensor:
    """x + size towards, then into the ball of that radius around the center and into [0, 1]; `size` may be one per example."""
    step = per_example(size, x) if isinstance(size, Tensor) else size
    return Linf(radius).project(x + step * towards, center)


def _unchanged(saved: Tensor) -> Tensor:
    return saved
