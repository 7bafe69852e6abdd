"""FAB: steps to the linearized decision boundary, biased towards the clean image."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from saddlepoint.attacks.base import Attack
from saddlepoint.attacks.best import AttackResult
from saddlepoint.attacks.hyperplane import distance, step_to_plane
from saddlepoint.attacks.min_norm import MinNormTracker
from saddlepoint.attacks.oracle import Differentiates
from saddlepoint.attacks.spaces import Ball, per_example
from saddlepoint.defenses import Access
from saddlepoint.gradients import Evaluation, ValueAndGradient
from saddlepoint.rng import Keys

# (oracle, x [N, ...], space) -> the margin, and the margin of the one decision boundary that a step
# uses, with its gradient. Both are zero on the boundary.
Facet = Callable[[Differentiates, Tensor, Ball], tuple[Evaluation, ValueAndGradient]]


def nearest_facet(
    oracle: Differentiates, x: Tensor, space: Ball
) -> tuple[Evaluation, ValueAndGradient]:
    """The boundary of the class that is nearest if margins are linear.

    argmin_k |f_k| / ||grad f_k||_q over all other classes k. It costs one backward pass per class.
    """
    (values, success), grads = oracle.class_margins(x)  # [C-1, N], [C-1, N, ...]
    nearest = torch.stack(
        [distance(value, grad, space) for value, grad in zip(values, grads, strict=True)]
    ).argmin(0)
    rows = torch.arange(len(x), device=x.device)
    return Evaluation(values.amax(0), success), ValueAndGradient(
        Evaluation(values[nearest, rows], success), grads[nearest, rows]
    )


def own_facet(
    oracle: Differentiates,
    x: Tensor,
    space: Ball,  # noqa: ARG001
) -> tuple[Evaluation, ValueAndGradient]:
    """The boundary of the oracle's own value, which must be a margin.

    With `targeted_margin` it is the boundary to one class. It costs one backward pass.
    """
    result = oracle.gradient(x)
    return result.evaluation, result


@dataclass(frozen=True)
class FAB(Attack[Differentiates]):
    """FAB, Croce & Hein 2020, Alg. 1. With the shortest step d onto the linearized boundary,

        x <- (1 - a)(x + eta d(x)) + a (c + eta d(c)),   a = min(|d(x)| / (|d(x)| + |d(c)|), bias),

    where a draws x towards the clean image c. After a success, x <- c + beta (x - c).
    FAB-T is `MultiTarget(Direct("fab-t", FAB(facet=own_facet)), loss=targeted_margin)`.

    It costs one gradient and one evaluation per step, and `search` + 1 evaluations at the end. The
    paper ends with three steps of an interpolating line search on the margin; here a bisection on
    success is used, which needs no margin. Restarts are drawn from a ball of half the radius that
    is still of interest, not from its sphere.

    Args:
        steps: steps per run, at least 1; default 100.
        restarts: number of runs, at least 1; default 1. The first starts at the clean image.
        facet: chooses the decision boundary of a step: `nearest_facet` (default) or `own_facet`.
        bias: largest weight of the clean image, alpha_max of the paper; default 0.1.
        eta: overshoot beyond the linearized boundary, as a factor of the step; default 1.05.
        beta: share of the perturbation that remains after a success; default 0.9.
        search: bisections at the end, at least 0; default 10.
    """

    steps: int = 100
    restarts: int = 1
    facet: Facet = nearest_facet
    bias: float = 0.1
    eta: float = 1.05
    beta: float = 0.9
    search: int = 10
    needs: ClassVar[Access] = "gradient"
    minimum_norm: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.steps < 1 or self.restarts < 1 or self.search < 0:
            raise ValueError(
                "FAB needs steps >= 1, restarts >= 1 and search >= 0, "
                f"got steps={self.steps}, restarts={self.restarts}, search={self.search}."
            )

    @property
    def calls(self) -> int:
        return 2 * self.steps * self.restarts + self.search + 1

    def scaled(self, factor: int) -> FAB:
        return replace(self, steps=factor * self.steps)

    def __call__(
        self, oracle: Differentiates, center: Tensor, space: Ball, keys: Keys
    ) -> AttackResult:
        nearest = MinNormTracker(center, space, keys, oracle.coupled)
        for run in range(self.restarts):
            x = self._start(center, space, nearest.size, keys.fold_in(run)) if run else center
            for _ in range(self.steps):
                evaluation, ((value, _), grad) = self.facet(oracle, x, space)
                nearest.update(x, evaluation)
                x = nearest.legal(self._step(x, center, value, grad, space))
                evaluation = oracle.score(x)
                nearest.update(x, evaluation)
                x = torch.where(
                    per_example(evaluation.success, x), center + self.beta * (x - center), x
                )
        nearest.search(oracle, self.search)
        return nearest.result(oracle)

    def _start(self, center: Tensor, space: Ball, size: Tensor, keys: Keys) -> Tensor:
        share = size.clamp(max=space.radius) / (2 * max(space.radius, 1e-30))
        return center + per_example(share, center) * (space.sample(center, keys) - center)

    def _step(self, x: Tensor, center: Tensor, value: Tensor, grad: Tensor, space: Ball) -> Tensor:
        value_center = value + (grad * (center - x)).flatten(1).sum(1)  # linearized at x
        d_x = step_to_plane(x, grad, -value, space)
        d_center = step_to_plane(center, grad, -value_center, space)
        size_x, size_center = (space.size(d).clamp(min=1e-8) for d in (d_x, d_center))
        a = per_example((size_x / (size_x + size_center)).clamp(max=self.bias), x)
        return ((1 - a) * (x + self.eta * d_x) + a * (center + self.eta * d_center)).clamp(
            *space.box
        )
