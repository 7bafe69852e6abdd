"""One objective over several models, looked at one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from saddlepoint.attack.goal import Goal
from saddlepoint.coins import Coins
from saddlepoint.gradients import Estimator, Objective, Reading, Slope


class Over(Protocol):
    """How the losses of several models count as one: sum_j w_j L_j, with weights that depend on nothing but the losses."""

    @property
    def reads_first(self) -> bool: ...  # do weights depend on the losses, and thus on all models?
    def weights(self, values: Tensor) -> Tensor: ...  # [M, ..., N] losses -> as many weights, which sum to one over the M models
    def patience(self, models: int) -> int: ...  # how many times longer an attack on so many models takes


@dataclass(frozen=True)
class AverageLoss:
    """L_AVG = 1/M sum_j L_j (Chen et al. 2022, Sec. 5.2)."""

    @property
    def reads_first(self) -> bool:
        return False

    def weights(self, values: Tensor) -> Tensor:
        return torch.full_like(values, 1 / len(values))

    def patience(self, models: int) -> int:  # noqa: ARG002
        return 1


@dataclass(frozen=True)
class LeastLoss:
    """L_MIN = min_j L_j, example by example: no model may stay unharmed (Chen et al. 2022, Sec. 5.2).

    Its gradient is that of the model with the least loss, the first of several. It climbs one model at a time, so an attack on M of
    them is M times as long (App. A.1.3).
    """

    @property
    def reads_first(self) -> bool:
        return True

    def weights(self, values: Tensor) -> Tensor:
        least = values.argmin(0, keepdim=True)
        return torch.zeros_like(values).scatter(0, least, 1.0)

    def patience(self, models: int) -> int:
        return models


AVERAGE = AverageLoss()


@dataclass(frozen=True)
class Pool:
    """The attacker's objective over several models: w-weighted losses, and success where all models err.

    Gradients are taken model by model, so that no more than one model's activations are held. Where rows are independent the
    weights may be applied afterwards, row by row; where they are not, weights that depend on the losses are read before.
    """

    goals: tuple[Goal, ...]
    over: Over
    coupled: bool = False

    def __call__(self, x: Tensor, coins: Coins) -> Reading:
        return self._combined([goal(x, coins) for goal in self.goals])

    def __getitem__(self, rows: Tensor) -> Pool:
        return replace(self, goals=tuple(goal[rows] for goal in self.goals))

    def cost(self, estimator: Estimator) -> int:
        return sum(goal.cost(estimator) for goal in self.goals)

    def slope_cost(self, estimator: Estimator) -> tuple[int, int]:
        forward, backward = (sum(passes) for passes in zip(*(goal.slope_cost(estimator) for goal in self.goals), strict=True))
        return forward + (self.cost(estimator) if self._looks_first else 0), backward

    def read(self, estimator: Estimator, x: Tensor, coins: Coins) -> Reading:
        return self._combined([goal.read(estimator, x, coins) for goal in self.goals])

    def slope(self, estimator: Estimator, x: Tensor, coins: Coins) -> Slope:
        return self._slope(self.goals, estimator, x, coins)

    def facet_slope(self, estimator: Estimator, x: Tensor, coins: Coins) -> Slope:
        return self._slope([goal.facets for goal in self.goals], estimator, x, coins)

    @property
    def _looks_first(self) -> bool:
        return self.coupled and self.over.reads_first

    def _slope(self, objectives: Sequence[Objective], estimator: Estimator, x: Tensor, coins: Coins) -> Slope:
        looked = [(goal.through(estimator), objective) for goal, objective in zip(self.goals, objectives, strict=True)]
        if self._looks_first:
            values = torch.stack([each.read(objective, x, coins).value for each, objective in looked])
            weights = self.over.weights(values)
            parts = [each.slope(_Weighted(o, w), x, coins) for (each, o), w in zip(looked, weights, strict=True)]
            success = torch.stack([part.reading.success for part in parts]).all(0)
            return Slope(Reading(_weighted(weights, values), success), torch.stack([part.grad for part in parts]).sum(0))
        slopes = [each.slope(objective, x, coins) for each, objective in looked]
        weights = self.over.weights(torch.stack([slope.reading.value for slope in slopes]))  # [M, ..., N]
        grads = torch.stack([slope.grad for slope in slopes])  # [M, ..., N, *shape]
        spread = weights.view(*weights.shape, *[1] * (grads.ndim - weights.ndim))
        return Slope(self._combined([slope.reading for slope in slopes]), _weighted(spread, grads))

    def _combined(self, readings: Sequence[Reading]) -> Reading:
        values = torch.stack([reading.value for reading in readings])
        return Reading(
            _weighted(self.over.weights(values.detach()), values), torch.stack([reading.success for reading in readings]).all(0)
        )


@dataclass(frozen=True)
class _Weighted:
    """Some rows of an objective, or parts of them."""

    objective: Objective
    weights: Tensor  # [..., N]

    def __call__(self, x: Tensor, coins: Coins) -> Reading:
        value, success = self.objective(x, coins)
        return Reading(self.weights * value, success)


def _weighted(weights: Tensor, parts: Tensor) -> Tensor:
    # A model without weight has no say, not even where its loss is infinite.
    return torch.where(weights == 0, 0.0, weights * parts).sum(0)
