"""Gradient steps that a defense takes while it answers, under an attacker's autograd or without it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from saddlepoint.attacks.spaces import Linf, per_example

Objective = Callable[[Tensor], Tensor]  # [N, ...] -> [N], or their total
_BETA_1 = 0.9
_BETA_2 = 0.999
_EPSILON = 1e-8  # of Adam


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


def signed_step(
    x: Tensor, towards: Tensor, size: float | Tensor, center: Tensor, radius: float
) -> Tensor:
    """x + size towards, then into the ball of that radius around the center and into [0, 1]; `size` may be one per example."""
    step = per_example(size, x) if isinstance(size, Tensor) else size
    return Linf(radius).project(x + step * towards, center)


def adam(state: Tensor, g: Tensor, t: int, rate: float) -> Tensor:
    """The t-th update of Adam, t = 1, 2, ..., of a state [N, 3, ...]: what is moved, and its two moments (Kingma & Ba 2015).

    m <- b1 m + (1 - b1) g,  v <- b2 v + (1 - b2) g^2,  u <- u - rate m' / (sqrt(v') + eps),
    m' = m / (1 - b1^t),  v' = v / (1 - b2^t).
    """
    u, m, v = state.unbind(1)
    m = _BETA_1 * m + (1 - _BETA_1) * g
    v = _BETA_2 * v + (1 - _BETA_2) * g.square()
    u = u - rate * (m / (1 - _BETA_1**t)) / (_root(v / (1 - _BETA_2**t)) + _EPSILON)
    return torch.stack([u, m, v], dim=1)


def at_rest(u: Tensor) -> Tensor:
    """[N, 3, ...]: u before any update, its moments being zero."""
    return torch.stack([u, torch.zeros_like(u), torch.zeros_like(u)], dim=1)


def _root(v: Tensor) -> Tensor:
    """sqrt(v) with slope 0 at 0, where autograd would multiply infinity by zero."""
    positive = v > 0
    return torch.where(positive, torch.where(positive, v, 1.0).sqrt(), 0.0)


def _unchanged(saved: Tensor) -> Tensor:
    return saved
