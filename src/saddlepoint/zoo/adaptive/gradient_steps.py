"""Gradient steps that a defense takes during inference.

They work under `torch.no_grad()` and inside a graph that an attacker differentiates.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from saddlepoint.attacks.spaces import Ball, Linf, per_example

Objective = Callable[[Tensor], Tensor]  # [N, ...] -> [N], or a scalar
Direction = Callable[[Tensor], Tensor]  # gradient [N, ...] -> step direction of the same shape
_BETA_1 = 0.9  # decay of Adam's first moment
_BETA_2 = 0.999  # decay of Adam's second moment
_EPSILON = 1e-8  # added to the denominator of Adam's update


def input_gradient(objective: Objective, x: Tensor, *, differentiable: bool = True) -> Tensor:
    """Compute the gradient of the summed objective with respect to x, also under `no_grad`.

    Args:
        objective: Function of x; its outputs are summed.
        x: [N, ...] point at which the gradient is taken.
        differentiable: Whether the result can be differentiated again. This has an effect only
            where autograd records a graph.

    Returns:
        [N, ...] gradient.
    """
    keeps_graph = differentiable and torch.is_grad_enabled()
    # A gradient without a graph is consumed at once. An outer checkpoint must therefore not
    # discard the tensors saved for it, or the objective would be evaluated twice.
    saved_tensors = nullcontext() if keeps_graph else saved_tensors_hooks(Tensor.detach, _identity)
    with torch.enable_grad(), saved_tensors:
        point = x if keeps_graph and x.requires_grad else x.detach().requires_grad_()
        return torch.autograd.grad(objective(point).sum(), point, create_graph=keeps_graph)[0]


def gradient_sign(objective: Objective, x: Tensor) -> Tensor:
    """Compute the sign of the gradient of the summed objective.

    The sign is piecewise constant and its derivative is zero almost everywhere. No graph for
    second derivatives is kept.
    """
    return input_gradient(objective, x, differentiable=False).sign()


def projected_step(
    x: Tensor, direction: Tensor, step_size: float | Tensor, center: Tensor, radius: float
) -> Tensor:
    """Compute x + step_size * direction, projected onto an Linf ball and [0, 1].

    Args:
        x: [N, ...] current point.
        direction: [N, ...] step direction.
        step_size: Step length, one number or one per example [N].
        center: [N, ...] center of the ball.
        radius: Radius of the ball.
    """
    step = per_example(step_size, x) if isinstance(step_size, Tensor) else step_size
    return Linf(radius).project(x + step * direction, center)


@dataclass(frozen=True)
class AscentStep:
    """One step x <- project(x + step_size * direction(grad_x objective(x))).

    The derivative of the sign is zero almost everywhere, so no second derivatives are computed
    for it. Any other direction is differentiable, and the attacker's gradient flows through it.
    """

    step_size: float  # in units of the input
    space: Ball | None = None  # set around the initial x; None: no projection
    direction: Direction = torch.sign

    def __call__(
        self, objective: Objective, x: Tensor, start: Tensor, radius: Tensor | None = None
    ) -> Tensor:
        """Take one step.

        Args:
            objective: [N, ...] -> [N], to be increased.
            x: [N, ...] current point.
            start: [N, ...] center of the projection.
            radius: [N] one radius per example; None uses the radius of `space`.
        """
        return self.move(x, self.direction_at(objective, x), start, radius)

    def direction_at(self, objective: Objective, x: Tensor) -> Tensor:
        """Return the step direction at x [N, ...]."""
        differentiable = self.direction is not torch.sign
        return self.direction(input_gradient(objective, x, differentiable=differentiable))

    def move(
        self, x: Tensor, direction: Tensor, start: Tensor, radius: Tensor | None = None
    ) -> Tensor:
        """Take one step along a direction [N, ...]; other arguments as for a call."""
        moved = x + self.step_size * direction
        return moved if self.space is None else self.space.project(moved, start, radius)


class KnownDirections:
    """The step directions of an objective, computed once at every batch of points.

    Searches from one start that differ in their radius share points until a projection separates
    them. Directions that are differentiated are computed again.

    Args:
        step: The step.
        objective: [N, ...] -> [N], to be increased.
    """

    def __init__(self, step: AscentStep, objective: Objective) -> None:
        self._step = step
        self._objective = objective
        self._known: list[tuple[Tensor, Tensor]] = []

    def __call__(self, x: Tensor) -> Tensor:
        """Return the direction at x [N, ...]."""
        if torch.is_grad_enabled() and self._step.direction is not torch.sign:
            return self._step.direction_at(self._objective, x)
        for point, direction in self._known:
            if torch.equal(point, x):
                return direction
        direction = self._step.direction_at(self._objective, x)
        self._known.append((x.detach(), direction))
        return direction


def adam_step(state: Tensor, grad: Tensor, t: int, learning_rate: float) -> Tensor:
    """Apply the t-th update of Adam (Kingma & Ba 2015).

    m <- b1 m + (1 - b1) g,  v <- b2 v + (1 - b2) g^2,
    u <- u - learning_rate m' / (sqrt(v') + eps),  m' = m / (1 - b1^t),  v' = v / (1 - b2^t).

    Args:
        state: [N, 3, ...] variable u and its moments m and v.
        grad: [N, ...] gradient with respect to u.
        t: Number of the update, starting at 1.
        learning_rate: Step size.

    Returns:
        [N, 3, ...] the new state.
    """
    u, m, v = state.unbind(1)
    m = _BETA_1 * m + (1 - _BETA_1) * grad
    v = _BETA_2 * v + (1 - _BETA_2) * grad.square()
    u = u - learning_rate * (m / (1 - _BETA_1**t)) / (_sqrt(v / (1 - _BETA_2**t)) + _EPSILON)
    return torch.stack([u, m, v], dim=1)


def initial_adam_state(u: Tensor) -> Tensor:
    """Return [N, 3, ...]: the variable u [N, ...] with zero moments."""
    return torch.stack([u, torch.zeros_like(u), torch.zeros_like(u)], dim=1)


def _sqrt(v: Tensor) -> Tensor:
    """Return sqrt(v) with derivative 0 at 0, where autograd would multiply infinity by zero."""
    positive = v > 0
    return torch.where(positive, torch.where(positive, v, 1.0).sqrt(), 0.0)


def _identity(saved: Tensor) -> Tensor:
    return saved
