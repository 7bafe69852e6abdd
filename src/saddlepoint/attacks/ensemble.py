"""One objective over several models, which are evaluated one after the other."""

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
    """Combines the losses of M models to sum_j w_j L_j; the weights depend on the losses only."""

    @property
    def needs_all_losses(self) -> bool:
        """Whether the weights depend on the losses, and thus on all models."""
        ...

    def weights(self, values: Tensor) -> Tensor:
        """Weights for the losses, [M, ..., N], of the same shape; their sum over M is one."""
        ...

    def step_factor(self, models: int) -> int:
        """By what factor an attack on this many models needs more steps."""
        ...


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
    """L_MIN = min_j L_j per example: the loss must be high on all models.

    Chen et al. 2022, Sec. 5.2. Its gradient is that of the model with the lowest loss, the first of
    several equal ones. A step increases the loss of one model only, so an attack on M models uses M
    times as many steps (App. A.1.3).
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
    """The attack objective over several models: weighted losses; success if all models err.

    Gradients are computed model by model, so only one model's activations are in memory. If rows
    are independent, the weights are applied to the gradients of each row afterwards. If rows are
    coupled, weights that depend on the losses are computed first, by one more evaluation.

    Args:
        objectives: one objective per model.
        weighting: combines the losses.
        coupled: rows influence each other; default False.
    """

    objectives: tuple[AttackObjective, ...]
    weighting: LossWeighting
    coupled: bool = False

    def __call__(self, x: Tensor, keys: Keys) -> Evaluation:
        """Value and success at the points x, [N, ...]; differentiable in x."""
        return self._combined([objective(x, keys) for objective in self.objectives])

    def __getitem__(self, rows: Tensor) -> Ensemble:
        """The same objective for some of the rows."""
        return replace(self, objectives=tuple(objective[rows] for objective in self.objectives))

    def cost(self, estimator: Estimator) -> int:
        """Forward passes per evaluation, over all models."""
        return sum(objective.cost(estimator) for objective in self.objectives)

    def gradient_cost(self, estimator: Estimator) -> tuple[int, int]:
        """Forward and backward passes per gradient, over all models."""
        forward, backward = (
            sum(passes)
            for passes in zip(
                *(objective.gradient_cost(estimator) for objective in self.objectives), strict=True
            )
        )
        return forward + (self.cost(estimator) if self._weights_come_first else 0), backward

    def evaluate(self, estimator: Estimator, x: Tensor, keys: Keys) -> Evaluation:
        """Value and success at the points x, [N, ...], by an estimator."""
        return self._combined(
            [objective.evaluate(estimator, x, keys) for objective in self.objectives]
        )

    def value_and_grad(self, estimator: Estimator, x: Tensor, keys: Keys) -> ValueAndGradient:
        """Value, success and gradient at the points x, [N, ...], by an estimator."""
        return self._gradient(self.objectives, estimator, x, keys)

    def class_margin_gradients(
        self, estimator: Estimator, x: Tensor, keys: Keys
    ) -> ValueAndGradient:
        """The margins of all other classes and their gradients, by an estimator."""
        return self._gradient(
            [objective.class_margins for objective in self.objectives], estimator, x, keys
        )

    @property
    def _weights_come_first(self) -> bool:
        return self.coupled and self.weighting.needs_all_losses

    def _gradient(
        self, functions: Sequence[ObjectiveFunction], estimator: Estimator, x: Tensor, keys: Keys
    ) -> ValueAndGradient:
        estimated = [
            (objective.through(estimator), function)
            for objective, function in zip(self.objectives, functions, strict=True)
        ]
        if self._weights_come_first:
            return self._gradient_of_weighted(estimated, x, keys)
        results = [each.value_and_grad(function, x, keys) for each, function in estimated]
        values = torch.stack([result.evaluation.value for result in results])
        weights = self.weighting.weights(values)  # [M, ..., N]
        grads = torch.stack([result.grad for result in results])  # [M, ..., N, *shape]
        spread = weights.view(*weights.shape, *[1] * (grads.ndim - weights.ndim))
        return ValueAndGradient(
            self._combined([result.evaluation for result in results]), _weighted(spread, grads)
        )

    def _gradient_of_weighted(
        self, estimated: Sequence[tuple[Estimator, ObjectiveFunction]], x: Tensor, keys: Keys
    ) -> ValueAndGradient:
        """The gradient of the weighted losses, for weights that depend on all rows of a batch."""
        values = torch.stack(
            [each.evaluate(function, x, keys).value for each, function in estimated]
        )
        weights = self.weighting.weights(values)
        parts = [
            each.value_and_grad(_WeightedObjective(function, w), x, keys)
            for (each, function), w in zip(estimated, weights, strict=True)
        ]
        success = torch.stack([part.evaluation.success for part in parts]).all(0)
        return ValueAndGradient(
            Evaluation(_weighted(weights, values), success),
            torch.stack([part.grad for part in parts]).sum(0),
        )

    def _combined(self, evaluations: Sequence[Evaluation]) -> Evaluation:
        values = torch.stack([evaluation.value for evaluation in evaluations])
        return Evaluation(
            _weighted(self.weighting.weights(values.detach()), values),
            torch.stack([evaluation.success for evaluation in evaluations]).all(0),
        )


@dataclass(frozen=True)
class _WeightedObjective:
    """An objective with values multiplied by a weight per row."""

    objective: ObjectiveFunction
    weights: Tensor  # [..., N]

    def __call__(self, x: Tensor, keys: Keys) -> Evaluation:
        value, success = self.objective(x, keys)
        return Evaluation(self.weights * value, success)


def _weighted(weights: Tensor, parts: Tensor) -> Tensor:
    # A model of weight zero contributes nothing, even where its loss is infinite.
    return torch.where(weights == 0, 0.0, weights * parts).sum(0)
