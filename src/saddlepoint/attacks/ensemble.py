"""One objective over several models, looked at one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from saddlepoint.attacks.objective import AttackObjective
from saddlepoint.gradients import Estimator, Evaluation, ObjectiveFunction, ValueAndGradient
from saddlepoint.rng import Keys


class LossWeighting(Protocol):
    """How the losses of several models count as one: sum_j w_j L_j, with weights that depend on nothing but the losses."""

    @property
    def needs_all_losses(
        self,
    ) -> bool: ...  # do weights depend on the losses, and thus on all models?
    def weights(
        self, values: Tensor
    ) -> Tensor: ...  # [M, ..., N] losses -> as many weights, which sum to one over the M models
    def step_factor(
        self, models: int
    ) -> int: ...  # how many times longer an attack on so many models takes


@dataclass(frozen=True)
class AverageLoss:
    """L_AVG = 1/M sum_j L_j (Chen et al. 2022, Sec. 5.2)."""

    @property
    def needs_all_losses(self) -> bool:
        return False

    def weights(self, values: Tensor) -> Tensor:
        return torch.full_like(values, 1 / len(values))

    def step_factor(self, models: int) -> int:  # noqa: ARG002
        return 1


@dataclass(frozen=True)
class MinLoss:
    """L_MIN = min_j L_j, example by example: no model may stay unharmed (Chen et al. 2022, Sec. 5.2).

    Its gradient is that of the model with the least loss, the first of several. It climbs one model at a time, so an attack on M of
    them is M times as long (App. A.1.3).
    """

    @property
    def needs_all_losses(self) -> bool:
        return True

    def weights(self, values: Tensor) -> Tensor:
        least = values.argmin(0, keepdim=True)
        return torch.zeros_like(values).scatter(0, least, 1.0)

    def step_factor(self, models: int) -> int:
        return models


AVERAGE = AverageLoss()


@dataclass(frozen=True)
class Ensemble:
    """The attacker's objective over several models: w-weighted losses, and success where all models err.

    Gradients are taken model by model, so that no more than one model's activations are held. Where rows are independent the
    weights may be applied afterwards, row by row; where they are not, weights that depend on the losses are read before.
    """

    objectives: tuple[AttackObjective, ...]
    weighting: LossWeighting
    coupled: bool = False

    def __call__(self, x: Tensor, keys: Keys) -> Evaluation:
        return self._combined([objective(x, keys) for objective in self.objectives])

    def __getitem__(self, rows: Tensor) -> Ensemble:
        return replace(self, objectives=tuple(objective[rows] for objective in self.objectives))

    def cost(self, estimator: Estimator) -> int:
        return sum(objective.cost(estimator) for objective in self.objectives)

    def gradient_cost(self, estimator: Estimator) -> tuple[int, int]:
        forward, backward = (
            sum(passes)
            for passes in zip(
                *(objective.gradient_cost(estimator) for objective in self.objectives), strict=True
            )
        )
        return forward + (self.cost(estimator) if self._looks_first else 0), backward

    def evaluate(self, estimator: Estimator, x: Tensor, keys: Keys) -> Evaluation:
        return self._combined(
            [objective.evaluate(estimator, x, keys) for objective in self.objectives]
        )

    def value_and_grad(self, estimator: Estimator, x: Tensor, keys: Keys) -> ValueAndGradient:
        return self._slope(self.objectives, estimator, x, keys)

    def class_margin_gradients(
        self, estimator: Estimator, x: Tensor, keys: Keys
    ) -> ValueAndGradient:
        return self._slope(
            [objective.class_margins for objective in self.objectives], estimator, x, keys
        )

    @property
    def _looks_first(self) -> bool:
        return self.coupled and self.weighting.needs_all_losses

    def _slope(
        self, functions: Sequence[ObjectiveFunction], estimator: Estimator, x: Tensor, keys: Keys
    ) -> ValueAndGradient:
        looked = [
            (objective.through(estimator), function)
            for objective, function in zip(self.objectives, functions, strict=True)
        ]
        if self._looks_first:
            values = torch.stack(
                [each.evaluate(function, x, keys).value for each, function in looked]
            )
            weights = self.weighting.weights(values)
            parts = [
                each.value_and_grad(_Weighted(o, w), x, keys)
                for (each, o), w in zip(looked, weights, strict=True)
            ]
            success = torch.stack([part.evaluation.success for part in parts]).all(0)
            return ValueAndGradient(
                Evaluation(_weighted(weights, values), success),
                torch.stack([part.grad for part in parts]).sum(0),
            )
        slopes = [each.value_and_grad(function, x, keys) for each, function in looked]
        weights = self.weighting.weights(
            torch.stack([slope.evaluation.value for slope in slopes])
        )  # [M, ..., N]
        grads = torch.stack([slope.grad for slope in slopes])  # [M, ..., N, *shape]
        spread = weights.view(*weights.shape, *[1] * (grads.ndim - weights.ndim))
        return ValueAndGradient(
            self._combined([slope.evaluation for slope in slopes]), _weighted(spread, grads)
        )

    def _combined(self, evaluated: Sequence[Evaluation]) -> Evaluation:
        values = torch.stack([evaluation.value for evaluation in evaluated])
        return Evaluation(
            _weighted(self.weighting.weights(values.detach()), values),
            torch.stack([evaluation.success for evaluation in evaluated]).all(0),
        )


@dataclass(frozen=True)
class _Weighted:
    """Some rows of an objective, or parts of them."""

    objective: ObjectiveFunction
    weights: Tensor  # [..., N]

    def __call__(self, x: Tensor, keys: Keys) -> Evaluation:
        value, success = self.objective(x, keys)
        return Evaluation(self.weights * value, success)


def _weighted(weights: Tensor, parts: Tensor) -> Tensor:
    # A model without weight has no say, not even where its loss is infinite.
    return torch.where(weights == 0, 0.0, weights * parts).sum(0)
