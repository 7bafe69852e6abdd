"""Gradients and values of the margin at the images of a probe."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from saddlepoint.attacks.losses import Loss, margin
from saddlepoint.attacks.objective import AttackObjective
from saddlepoint.audits.cells import with_fewer_rows
from saddlepoint.audits.probes.probe_target import ProbeTarget
from saddlepoint.gradients import Backprop, Rule
from saddlepoint.gradients.estimator import Evaluation
from saddlepoint.rng import Keys


@dataclass(frozen=True)
class GradientProbe:
    """A target, gradient rules and a loss.

    Images are moved half a radius away from the edges of the box, so that the box contains both
    points of a difference.
    """

    target: ProbeTarget
    rules: Mapping[str, Rule] = field(default_factory=dict)
    loss: Loss = margin

    @property
    def radius(self) -> float:
        """The radius per pixel."""
        return self.target.pixel_radius

    @property
    def x(self) -> Tensor:
        """[n, ...] the points of the probe."""
        low, high = self.target.space.box
        return self.target.x.clamp(low + self.radius / 2, high - self.radius / 2)

    @property
    def nearby(self) -> GradientProbe:
        """The same at random points of the perturbation set.

        A gradient may be right at clean images only.
        """
        target = self.target
        points = target.space.sample(target.x, target.keys(13))
        return replace(self, target=replace(target, x=points))

    def gradient(self, seed: int = 0) -> Tensor:
        """[n, ...] the gradient of the loss.

        Raises:
            ValueError, RuntimeError: no gradient reaches the input.
        """
        keys = self.target.keys(seed)
        return Backprop().value_and_grad(self._objective(), self.x, keys).grad

    def gradient_or_zero(self) -> Tensor:
        """[n, ...] the gradient; zero where it is missing or not finite."""
        return self.weighted_gradient(torch.ones_like(self.target.y, dtype=self.x.dtype))

    def weighted_gradient(self, weights: Tensor) -> Tensor:
        """[n, ...] the gradient of a weighted sum of losses; zero where missing or not finite.

        Args:
            weights: [n], one number per image.
        """
        objective = self._objective()

        def weighted(x: Tensor, keys: Keys) -> Evaluation:
            value, success = objective(x, keys)
            return Evaluation(value * weights, success)

        try:
            found = Backprop().value_and_grad(weighted, self.x, self.target.keys())
        except (ValueError, RuntimeError):
            return torch.zeros_like(self.x)
        return found.grad.nan_to_num(0.0, 0.0, 0.0)

    def value(self, x: Tensor) -> Tensor:
        """[n] the margin at points [n, ...].

        Checks of several gradients use the same points. A target that declares equal outputs of
        equal calls, which may be expensive, is called once.
        """
        if not self.target.repeatable:
            return self._value(x)
        content = hashlib.sha256(x.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
        known = self.target.margins
        if content.digest() not in known:
            known[content.digest()] = self._value(x)
        return known[content.digest()]

    def _value(self, x: Tensor) -> Tensor:
        objective = replace(self._objective(), loss=margin, rules={})
        return Backprop().evaluate(objective, x, self.target.keys()).value

    def values(self, points: Sequence[Tensor]) -> list[Tensor]:
        """[n] margins at each of several points [n, ...].

        Those of a pure function are computed in one call, or in a few if there is too little
        memory. Rows must be independent.
        """

        def in_calls(most: int) -> list[Tensor]:
            calls = [points[k : k + most] for k in range(0, len(points), most)]
            return [value for call in calls for value in self._values_of_call(call)]

        return with_fewer_rows(in_calls, len(points) if self.target.pure else 1)

    def _values_of_call(self, points: Sequence[Tensor]) -> list[Tensor]:
        if len(points) == 1:
            return [self.value(points[0])]
        n = len(self.target)
        rows = torch.arange(n, device=self.x.device).repeat(len(points))
        objective = replace(self._objective(), y=self.target.y[rows], loss=margin, rules={})
        found = Backprop().evaluate(objective, torch.cat(list(points)), self.target.keys(ids=rows))
        return list(torch.split(found.value, n))

    def margin_increase(self, grad: Tensor) -> Tensor:
        """[n] the increase of the margin over half a radius along the signs of `grad` [n, ...]."""
        signs = grad.nan_to_num(0.0, 0.0, 0.0).sign()
        return self.value(self.x + self.radius / 2 * signs) - self.value(self.x)

    def _objective(self) -> AttackObjective:
        return AttackObjective([self.target.attacked], self.target.y, self.loss, rules=self.rules)
